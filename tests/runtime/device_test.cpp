#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <random>

#include "runtime/device/cpu_device.hpp"
#include "runtime/model/weights.hpp"
#include "runtime/serving/settings.hpp"
#include "runtime/serving/shard_load.hpp"

namespace troupe {
namespace {

constexpr uint32_t hidden = 64;
constexpr int width = 32;

kernels::packed_matrix random_matrix(const kernels::compute& math, int n, int k, uint64_t seed) {
  std::mt19937_64 draw(seed);
  std::vector<float> values(static_cast<size_t>(n) * static_cast<size_t>(k));
  for (auto& value : values) value = static_cast<float>(static_cast<int>(draw() % 256) - 128) / 512.0F;
  return math.pack({.dtype = kernels::weight_dtype::f32, .data = values.data(), .n = n, .k = k},
                   math.preferred_format());
}

expert_weights random_expert(const kernels::compute& math, uint64_t seed) {
  expert_weights weights;
  weights.gate = random_matrix(math, width, hidden, seed);
  weights.up = random_matrix(math, width, hidden, seed + 1);
  weights.down = random_matrix(math, hidden, width, seed + 2);
  return weights;
}

// A dispatch of `rows` rows, all for one expert, and the room for its answer.
void fill(dispatch_work& work, buffer_pool& pool, uint32_t rows_wanted, uint64_t seed) {
  auto& header = work.request.header;
  header.kind = message_kind::dispatch;
  header.dtype = wire_dtype::f32;
  header.hidden = hidden;
  header.row_count = header.pair_count = rows_wanted;
  header.payload_bytes = payload_bytes(wire_dtype::f32, hidden, rows_wanted, rows_wanted);
  work.request.payload = pool.acquire(header.payload_bytes);
  work.answer.header = header;
  work.answer.header.kind = message_kind::combine;
  work.answer.payload = pool.acquire(header.payload_bytes);
  std::mt19937_64 draw(seed);
  auto* values = reinterpret_cast<float*>(rows(work.request));
  for (uint32_t i = 0; i < rows_wanted * hidden; ++i)
    values[i] = static_cast<float>(static_cast<int>(draw() % 256) - 128) / 64.0F;
  work.order.clear();
  for (uint32_t i = 0; i < rows_wanted; ++i) {
    pairs(work.request)[i] = {static_cast<uint16_t>(i), 0, 0, 0, 0};
    work.order.push_back(i);
  }
  work.experts_left = 1;
}

struct counting_listener : dispatch_listener {
  std::atomic<int> done{0};
  void completed(dispatch_work&) override { ++done; }
};

// A stage that holds the device until it is let go.
struct blocking_stage : stage_task {
  std::atomic<bool> go{false};
  std::atomic<int> done{0};
  void run(worker_team&) override {
    while (!go) std::this_thread::yield();
  }
  void completed(const stage_time&) override { ++done; }
  stage_label label() const override { return {}; }
  task_cost cost() const override { return {}; }
};

std::vector<float> outputs(const dispatch_work& work) {
  const auto* values = reinterpret_cast<const float*>(rows(work.answer));
  return {values, values + work.answer.header.pair_count * hidden};
}

size_t sized(int count) { return static_cast<size_t>(count); }

template <class Condition>
bool eventually(Condition&& condition) {
  for (int i = 0; i < 20000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return condition();
}

}  // namespace

TEST_CASE("rows from several sources become one launch that reads the expert's weights once") {
  for (const int threads : {1, 2}) {
    CAPTURE(threads);
    cpu_device device(kernels::compute::make(kernels::profile::f32), threads);
    buffer_pool pool(64U << 20U);
    const auto weights = random_expert(device.math(), 5);
    counting_listener listener;
    std::vector<dispatch_work> together(4), alone(4);
    for (size_t i = 0; i < 4; ++i)
      for (auto* set : {&together, &alone}) {
        fill((*set)[i], pool, 8 + static_cast<uint32_t>(i) * 50, i);
        (*set)[i].listener = &listener;
      }
    blocking_stage hold;
    device.submit(hold);
    for (auto& work : together) device.submit(expert_task{&weights, &work, 3, 0, 0, work.request.header.row_count});
    hold.go = true;
    REQUIRE(eventually([&] { return listener.done == 4; }));
    CHECK(device.statistics().weight_passes == 1);
    CHECK(device.statistics().expert_launches == 1);

    // One after the other the bits are the same: a row does not depend on its company.
    for (int i = 0; i < 4; ++i) {
      auto& work = alone[static_cast<size_t>(i)];
      device.submit(expert_task{&weights, &work, 3, 0, 0, work.request.header.row_count});
      REQUIRE(eventually([&] { return listener.done == 5 + i; }));
    }
    for (size_t i = 0; i < 4; ++i) CHECK(outputs(together[i]) == outputs(alone[i]));
    device.stop();
  }
}

TEST_CASE("whoever runs a completion hears whether the device has more to do") {
  struct counting final : between_tasks {
    std::atomic<int> completions{0}, with_more{0};
    void complete(function_ref<void()> complete, function_ref<bool()> idle) override {
      complete();
      ++completions;
      with_more += idle() ? 0 : 1;
    }
  };
  const auto between = std::make_shared<counting>();
  cpu_device device(kernels::compute::make(kernels::profile::f32), 1, default_ranks, {}, between);
  blocking_stage first, second;
  device.submit(first);
  device.submit(second);
  first.go = second.go = true;
  REQUIRE(eventually([&] { return between->completions == 2; }));
  CHECK(first.done == 1);
  CHECK(second.done == 1);
  CHECK(between->with_more == 1);
  device.stop();
}

TEST_CASE("a device without a task waits where it is told to, or by itself, and hears of each new one either way") {
  struct waiting_room final : between_tasks {
    std::atomic<bool> closed{false}, told{false};
    std::atomic<int> waits{0}, begun{0};
    bool wait(function_ref<bool()> ready, uint64_t) override {
      if (closed) return false;
      ++waits;
      while (!ready()) {
        while (!told.exchange(false)) std::this_thread::yield();
      }
      return true;
    }
    void task_begins() override { ++begun; }
    void end_wait() override { told = true; }
  };
  const auto room = std::make_shared<waiting_room>();
  cpu_device device(kernels::compute::make(kernels::profile::f32), 1, default_ranks, {}, room);
  for (int i = 0; i < 50; ++i) {
    if (i < 25)
      REQUIRE(eventually([&] { return room->waits > i; }));
    else
      room->closed = true;
    blocking_stage stage;
    stage.go = true;
    device.submit(stage);
    REQUIRE(eventually([&] { return stage.done == 1; }));
  }
  CHECK(room->begun == 50);
  device.stop();
}

TEST_CASE("by default stages go before experts, and experts of one layer before the next layer's") {
  device_queue queue(default_ranks);
  blocking_stage stage;
  dispatch_work work;
  queue.push(expert_task{nullptr, &work, 2, 7, 0, 1});
  queue.push(expert_task{nullptr, &work, 3, 1, 0, 1});
  queue.push(expert_task{nullptr, &work, 2, 4, 0, 1});
  queue.push(stage);
  std::vector<expert_task> group;
  CHECK(queue.take(1, 0, group) == &stage);
  CHECK(queue.take(1, 0, group) == nullptr);
  REQUIRE(group.size() == 2);
  CHECK(group[0].expert == 4);
  CHECK(group[1].expert == 7);
  CHECK(queue.take(1, 0, group) == nullptr);
  REQUIRE(group.size() == 1);
  CHECK(group[0].layer == 3);
  CHECK(queue.empty());
}

TEST_CASE("an output that is NaN or infinite marks its dispatch") {
  cpu_device device(kernels::compute::make(kernels::profile::f32), 1);
  buffer_pool pool(1U << 20U);
  const auto weights = random_expert(device.math(), 5);
  counting_listener listener;
  dispatch_work work;
  fill(work, pool, 2, 1);
  work.listener = &listener;
  reinterpret_cast<float*>(rows(work.request))[3] = std::numeric_limits<float>::infinity();
  device.submit(expert_task{&weights, &work, 0, 0, 0, 2});
  REQUIRE(eventually([&] { return listener.done == 1; }));
  CHECK(work.bad_output);
  device.stop();
}

TEST_CASE("a team runs every item once, whatever its size") {
  for (const int threads : {1, 2, 4}) {
    worker_team team(threads);
    for (int round = 0; round < 200; ++round) {
      std::vector<std::atomic<int>> ran(37);
      team.parallel("test", 37, [&](int i, worker_memory&) { ++ran[static_cast<size_t>(i)]; });
      for (const auto& count : ran) REQUIRE(count == 1);
    }
  }
}

TEST_CASE("a team's runs cover every item once, and a run's items follow each other on one member") {
  for (const int threads : {1, 2, 4})
    for (const int count : {0, 1, 3, 37}) {
      worker_team team(threads);
      for (int round = 0; round < 200; ++round) {
        std::vector<std::atomic<int>> ran(sized(count));
        std::vector<std::thread::id> member(sized(count));
        std::vector<int> begins(sized(count));
        team.parallel_runs("test", count, [&](int i, const item_run& run, worker_memory&) {
          ++ran[sized(i)];
          member[sized(i)] = std::this_thread::get_id();
          begins[sized(i)] = run.begin;
          REQUIRE(run.next < count);
        });
        for (int i = 0; i < count; ++i) {
          REQUIRE(ran[sized(i)] == 1);
          REQUIRE(begins[sized(i)] <= i);
          for (int before = begins[sized(i)]; before < i; ++before) REQUIRE(member[sized(before)] == member[sized(i)]);
        }
      }
    }
}

TEST_CASE("balancers choose by the published objectives") {
  const shard_load busy{.requests = 1, .tokens = 100, .attention_work = 5050};
  const shard_load idle{.requests = 3, .tokens = 90, .attention_work = 1365};
  const std::vector<shard_load> loads{busy, idle};
  CHECK(choose_prefill_shard(loads, 10) == 1);
  CHECK(choose_decode_shard(loads, 0) == 1);
  CHECK(!choose_prefill_shard({}, 10));
}

TEST_CASE("settings survive the way to a node, and bad ones are refused by name") {
  serving_settings settings;
  settings.model = "/a model";
  settings.rows_max = 77;
  settings.nodes_max = 9;
  settings.selection = replica_selection::weighted;
  settings.rebalance.policy = "search:trials=10";
  settings.rebalance.decay = 0.25;
  settings.rebalance.bandwidth_mb_s = 12.5;
  const auto read = parse_settings(settings.to_json());
  REQUIRE(read);
  CHECK(read->rows_max == 77);
  CHECK(read->model == "/a model");
  CHECK(read->rebalance == settings.rebalance);
  CHECK(read->selection == replica_selection::weighted);
  CHECK(read->nodes_max == 9);
  settings.verdict_ms = settings.heartbeat_ms;
  CHECK(validate(settings).failure().message.find("verdict_ms") != std::string::npos);
  CHECK(!parse_settings("{}"));
}

}  // namespace troupe
