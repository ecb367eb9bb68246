// Which experts a device launches together, for how long it holds rows back, and for whom.
#include "runtime/device/device_queue.hpp"

#include <doctest/doctest.h>

#include <array>
#include <list>

#include "runtime/serving/schedule.hpp"

namespace troupe {
namespace {

constexpr uint64_t pass_ns = 1000;
constexpr uint64_t wait_ns = gathering::wait_max * pass_ns;  // for a launch of one expert
constexpr uint32_t layers = 8;

// A queue, and shards that send it dispatches for one expert.
struct gathered_queue {
  explicit gathered_queue(const stage_ranks& ranks = default_ranks) : queue(ranks) {}

  device_queue queue;
  std::list<dispatch_work> works;
  std::vector<expert_task> group;
  uint64_t now_ns = 1;
  uint32_t rows = 1;  // of a dispatch

  bool push(uint16_t node, uint32_t layer, uint32_t experts = 1, uint32_t micro_batch = 0) {
    auto& work = works.emplace_back();
    work.request.header.source_node = node;
    work.request.header.micro_batch = micro_batch;
    work.request.header.layer = layer;
    work.experts = experts;
    work.order.resize(rows);
    return queue.push(expert_task{nullptr, &work, layer, 0, 0, rows});
  }
  // The nodes whose rows are launched next, in order of arrival.
  std::vector<uint16_t> take() {
    REQUIRE(queue.take(now_ns, pass_ns, group) == nullptr);
    std::vector<uint16_t> nodes;
    for (const auto& task : group) nodes.push_back(task.work->request.header.source_node);
    return nodes;
  }
  // Nodes 0 and 1 go through all layers together, so that each is worth waiting for.
  void go_together(uint32_t micro_batches = 1) {
    for (uint32_t layer = 0; layer < layers; ++layer)
      for (uint32_t micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
        push(0, layer, 1, micro_batch);
        push(1, layer, 1, micro_batch);
        REQUIRE(take().size() == 2);
      }
  }
};

using nodes = std::vector<uint16_t>;

}  // namespace

TEST_CASE("rows wait for those of a shard that is on its way to the layer, and are launched with them") {
  gathered_queue q;
  q.go_together();
  q.push(0, 0);
  CHECK(q.take().empty());
  CHECK(q.queue.held_until_ns() == q.now_ns + wait_ns);
  q.now_ns += wait_ns / 2;
  CHECK(q.take().empty());
  q.push(1, 0);
  CHECK(q.take() == nodes{0, 1});
  CHECK(q.queue.empty());
}

TEST_CASE("a device that holds rows back is woken by the last of those that it expects, not by each") {
  gathered_queue q;
  for (uint32_t layer = 0; layer < layers; ++layer) {
    for (const uint16_t node : {0, 1, 2}) q.push(node, layer);
    REQUIRE(q.take().size() == 3);
  }
  CHECK(q.push(0, 0));
  CHECK(q.take().empty());
  CHECK_FALSE(q.push(1, 0));
  CHECK(q.push(2, 0));
  CHECK(q.take() == nodes{0, 1, 2});
  CHECK(q.push(0, 1));
  CHECK(q.take().empty());
  CHECK(q.push(0, 2));  // of a layer for which nobody waits yet
}

TEST_CASE("rows are launched alone when the others have not come in time") {
  gathered_queue q;
  q.go_together();
  q.push(0, 0);
  CHECK(q.take().empty());
  q.now_ns = q.queue.held_until_ns();
  CHECK(q.take() == nodes{0});
  CHECK(q.queue.empty());
}

TEST_CASE("a stage that is ready goes before rows that wait for others") {
  class ready_stage final : public stage_task {
    void run(worker_team&) override {}
    void completed(const stage_time&) override {}
    task_cost cost() const override { return {}; }
    stage_label label() const override { return {.kind = stage_kind::shared}; }
  } stage;
  gathered_queue q;
  q.go_together();
  q.push(0, 0);
  q.queue.push(stage);
  CHECK(q.queue.take(q.now_ns, pass_ns, q.group) == &stage);
  CHECK(q.take().empty());
}

TEST_CASE("a shard that has been through a layer is not waited for there, and rows behind go before held ones") {
  gathered_queue q;
  q.go_together();
  q.push(0, 0);
  CHECK(q.take().empty());
  q.now_ns = q.queue.held_until_ns();
  CHECK(q.take() == nodes{0});
  q.push(0, 1);  // one layer ahead of the other shard
  CHECK(q.take().empty());
  q.push(1, 0);
  CHECK(q.take() == nodes{1});
  q.push(1, 1);
  CHECK(q.take() == nodes{0, 1});
}

TEST_CASE("a shard that sends no more costs a few waits and then none") {
  gathered_queue q;
  q.go_together();
  uint64_t waited_ns = 0;
  for (uint32_t i = 0; i < 20 * layers; ++i) {
    q.push(0, i % layers);
    if (q.take().empty()) {
      waited_ns += q.queue.held_until_ns() - q.now_ns;
      q.now_ns = q.queue.held_until_ns();
      REQUIRE(q.take() == nodes{0});
    }
  }
  CHECK(waited_ns > 0);
  CHECK(waited_ns <= 8 * wait_ns);
}

TEST_CASE("a shard that comes too late each time is not waited for in the end, and again once it keeps in step") {
  gathered_queue q;
  q.go_together();
  int waits = 0;
  for (uint32_t i = 0; i < 20 * layers; ++i) {
    q.push(0, i % layers);
    if (q.take().empty()) {
      ++waits;
      q.now_ns = q.queue.held_until_ns();
      REQUIRE(q.take() == nodes{0});
    }
    q.push(1, i % layers);
    if (q.take().empty()) {
      q.now_ns = q.queue.held_until_ns();
      REQUIRE(q.take() == nodes{1});
    }
  }
  CHECK(waits <= 8);
  q.go_together();
  q.push(0, 0);
  CHECK(q.take().empty());
}

TEST_CASE("another micro-batch of a shard whose rows are there is not waited for") {
  gathered_queue q;
  q.go_together(2);
  q.push(0, 0, 1, 0);
  q.push(1, 0, 1, 0);
  CHECK(q.take() == nodes{0, 1});
}

TEST_CASE("micro-batches of many rows are launched one after the other, so that the first's answers travel meanwhile") {
  gathered_queue q;
  q.rows = 100;
  q.go_together(2);
  // The other micro-batch's own rows are there already, and those that travel are not.
  q.push(0, 0, 1, 0);
  q.push(0, 0, 1, 1);
  q.push(1, 0, 1, 0);
  CHECK(q.take() == nodes{0, 1});
  CHECK(q.take().empty());
  q.push(1, 0, 1, 1);
  CHECK(q.take() == nodes{0, 1});
  for (const uint32_t micro_batch : {0U, 1U})
    for (const uint16_t node : {0, 1}) q.push(node, 1, 1, micro_batch);
  CHECK(q.take() == nodes{0, 1});
  CHECK(q.take() == nodes{0, 1});
}

TEST_CASE("where the schedule has experts before attention, all rows of a layer that are there are launched together") {
  gathered_queue q(find_schedule("dual_decode", ".")->ranks);
  q.rows = 100;
  q.go_together(2);
  q.push(0, 0, 1, 0);
  q.push(0, 0, 1, 1);
  q.push(1, 0, 1, 0);
  CHECK(q.take() == nodes{0, 0, 1});
}

TEST_CASE("micro-batches of few rows that are all there are launched together, so that weights are read once") {
  gathered_queue q;
  q.go_together();
  for (const uint32_t micro_batch : {0U, 1U})
    for (const uint16_t node : {0, 1}) q.push(node, 1, 1, micro_batch);
  CHECK(q.take() == nodes{0, 1, 0, 1});
  CHECK(q.queue.empty());
}

TEST_CASE("a dispatch is launched when the tasks of all its experts have come") {
  gathered_queue q;
  CHECK(!q.push(0, 0, 2));
  CHECK(q.take().empty());
  CHECK(q.queue.push(expert_task{nullptr, &q.works.back(), 0, 1, 0, 1}));
  CHECK(q.take() == nodes{0, 0});
}

TEST_CASE("a peer that makes up micro-batches takes no more memory than a fixed number of them") {
  gathering known;
  known.arrived({1, 1, 0}, 1);
  for (uint32_t made_up = 0; made_up < 5000; ++made_up) known.arrived({1, 1, made_up}, 0);
  known.arrived({2, 1, 0}, 0);  // one too many to be remembered
  const std::array there{row_stream{1, 1, 0}};
  CHECK(!known.expects_more(1, 0, there));
  gathering fresh;
  fresh.arrived({1, 1, 0}, 1);
  fresh.arrived({2, 1, 0}, 0);
  CHECK(fresh.expects_more(1, 0, there));
}

TEST_CASE("a launch has been ready since its newest rows came") {
  gathered_queue q;
  q.push(0, 0);
  q.works.back().request.delivered_ns = 100;
  q.push(1, 0);
  q.works.back().request.header.send_time_ns = 150;
  q.works.back().request.delivered_ns = 200;
  REQUIRE(q.take().size() == 2);
  CHECK(label_of(q.group).sent_ns == 150);
  CHECK(label_of(q.group).ready_ns == 200);
}

}  // namespace troupe
