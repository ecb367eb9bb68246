// The shaped wire over a local one. Nothing here depends on how fast the machine is: times are bounded
// from below only, and orders are exact.
#include "runtime/wire/shaped_wire.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <future>
#include <vector>

#include "runtime/wire/local_wire.hpp"
#include "runtime/wire/wire_time.hpp"
#include "tests/runtime/wire/fixture.hpp"

namespace troupe {
namespace {

using wire_test::eventually;
using wire_test::is_patterned;
using wire_test::patterned;

constexpr endpoint addressee{2, 5, 1};

// Node 1 with a shaped wire, node 2 with a plain one.
class two_nodes {
 public:
  explicit two_nodes(link_shape shape, uint32_t messages_max = 2048, uint64_t bytes_max = uint64_t{64} << 20U) {
    shaped_wire_options options;
    options.node = 1;
    options.links.set({1, 2, shape});
    options.messages_max = messages_max;
    options.bytes_max.fill(bytes_max);
    sender = std::make_unique<shaped_wire>(std::make_shared<local_wire>(network, 1, 1), options);
  }

  std::shared_ptr<local_switch> network = std::make_shared<local_switch>();
  buffer_pool pool{uint64_t{64} << 20U};
  local_wire receiver{network, 2, 1};
  std::unique_ptr<shaped_wire> sender;
};

// Refuses as exhausted until told otherwise.
class full_wire final : public wire {
 public:
  void attach(uint16_t, receiver) override {}
  void detach(uint16_t) override {}
  result<void> send(endpoint, micro_batch message) override {
    ++tries;
    if (full) return error{errc::exhausted, "full"};
    const std::lock_guard lock(mutex);
    (message.header.kind == message_kind::bulk ? bulks : combines).push_back(message.header.step);
    return {};
  }
  wire_statistics statistics() const override { return {}; }
  size_t taken() const {
    const std::lock_guard lock(mutex);
    return bulks.size() + combines.size();
  }

  std::atomic<bool> full{true};
  std::atomic<uint64_t> tries{0};
  mutable std::mutex mutex;
  std::vector<uint64_t> bulks;
  std::vector<uint64_t> combines;
};

}  // namespace

TEST_CASE("a shaped wire delivers intact, in order, not before the link could have, and counts") {
  constexpr uint64_t count = 200;
  constexpr uint64_t bytes = 5000;
  two_nodes nodes({.latency_us = 2000, .bandwidth_mb_s = 20, .jitter_us = 300});
  std::mutex mutex;
  std::vector<uint64_t> arrived;
  bool intact = true;
  uint64_t least_ns = UINT64_MAX;
  uint64_t last_ns = 0;
  nodes.receiver.attach(5, [&](micro_batch message) {
    const std::lock_guard lock(mutex);
    arrived.push_back(message.header.step);
    intact = intact && is_patterned(message);
    least_ns = std::min(least_ns, message.delivered_ns - message.header.send_time_ns);
    last_ns = message.delivered_ns;
  });
  const uint64_t start_ns = wire_time_ns();
  for (uint64_t i = 0; i < count; ++i) REQUIRE(nodes.sender->send(addressee, patterned(nodes.pool, bytes, i)));
  REQUIRE(eventually([&] { return nodes.sender->statistics().bytes_in_flight == 0; }));
  const std::lock_guard lock(mutex);
  REQUIRE(arrived.size() == count);
  for (uint64_t i = 0; i < count; ++i) CHECK(arrived[i] == i);
  CHECK(intact);
  const link_shape shape = nodes.sender->links().at(0).shape;
  // Each message's own time shows that the send was stamped when the caller sent.
  CHECK(least_ns >= shape.transfer_ns(bytes + sizeof(micro_batch_header)));
  CHECK(last_ns - start_ns >= shape.transfer_ns(count * (bytes + sizeof(micro_batch_header))));
  const auto link = nodes.sender->links().at(0);
  CHECK(link.to == 2);
  CHECK(link.counters.messages == count);
  CHECK(link.counters.bytes == count * (bytes + sizeof(micro_batch_header)));
  CHECK(link.counters.busy_ns == count * shape.occupied_ns(bytes + sizeof(micro_batch_header)));
  CHECK(link.messages_on_the_way == 0);
  CHECK(link.bytes_on_the_way == 0);
  CHECK(nodes.sender->statistics().messages_sent == count);
  CHECK(nodes.receiver.statistics().bytes_received == count * bytes);
  CHECK(nodes.pool.bytes_in_use() == 0);
}

TEST_CASE("messages to the node itself and over links without a shape go straight through") {
  two_nodes nodes({.latency_us = 10e6});
  local_wire third(nodes.network, 3, 1);
  std::vector<uint16_t> arrived;
  const auto on_caller = std::this_thread::get_id();
  const auto record = [&](micro_batch message) {
    CHECK(std::this_thread::get_id() == on_caller);
    arrived.push_back(message.header.destination_slot);
  };
  nodes.sender->attach(1, record);
  third.attach(2, record);
  REQUIRE(nodes.sender->send({1, 1, 1}, patterned(nodes.pool, 100, 0)));
  REQUIRE(nodes.sender->send({3, 2, 1}, patterned(nodes.pool, 100, 0)));
  CHECK(arrived == std::vector<uint16_t>{1, 2});
  nodes.sender->detach(1);
  REQUIRE(nodes.sender->send({1, 1, 1}, patterned(nodes.pool, 100, 0)));
  CHECK(nodes.sender->statistics().messages_dropped == 1);
  CHECK(nodes.sender->links().empty());
}

TEST_CASE("a shaped link holds a bounded number of messages and bytes of each class") {
  two_nodes by_number({.latency_us = 10e6}, 3);
  for (uint64_t i = 0; i < 3; ++i) REQUIRE(by_number.sender->send(addressee, patterned(by_number.pool, 10, i)));
  CHECK(by_number.sender->send(addressee, patterned(by_number.pool, 10, 3)).failure().code == errc::exhausted);
  micro_batch other;
  other.header.kind = message_kind::combine;
  other.header.status = combine_status::stale_epoch;
  CHECK(by_number.sender->send(addressee, other));
  CHECK(by_number.sender->statistics().bytes_in_flight == 30);
  CHECK(by_number.sender->links().at(0).messages_on_the_way == 4);

  two_nodes by_bytes({.latency_us = 10e6}, 2048, 1000);
  CHECK(by_bytes.sender->send(addressee, patterned(by_bytes.pool, 800, 0)));
  CHECK(by_bytes.sender->send(addressee, patterned(by_bytes.pool, 800, 1)).failure().code == errc::exhausted);
}

TEST_CASE("a shaped wire that ends drops what is on the way at once and gives its memory back") {
  two_nodes nodes({.latency_us = 10e6, .bandwidth_mb_s = 1});
  std::atomic<int> arrived{0};
  nodes.receiver.attach(5, [&](micro_batch) { ++arrived; });
  for (uint64_t i = 0; i < 20; ++i) REQUIRE(nodes.sender->send(addressee, patterned(nodes.pool, 100'000, i)));
  CHECK(nodes.pool.bytes_in_use() > 0);
  nodes.sender.reset();
  CHECK(nodes.pool.bytes_in_use() == 0);
  CHECK(arrived == 0);
}

TEST_CASE("a shaped wire refuses wrong counts, and counts a message to a peer that is gone as dropped") {
  two_nodes nodes({.latency_us = 1});
  micro_batch wrong;
  wrong.header.kind = message_kind::dispatch;
  wrong.header.pair_count = 3;
  CHECK(nodes.sender->send(addressee, wrong).failure().code == errc::invalid_argument);
  REQUIRE(nodes.sender->send({2, 5, 99}, patterned(nodes.pool, 10, 0)));
  CHECK(eventually([&] { return nodes.sender->statistics().messages_dropped == 1; }));
  CHECK(nodes.sender->statistics().bytes_in_flight == 0);
}

TEST_CASE("what the inner wire cannot take yet is tried again and keeps the order of its class") {
  const auto inner = std::make_shared<full_wire>();
  shaped_wire_options options;
  options.node = 1;
  options.links.set({-1, -1, {.latency_us = 10}});
  shaped_wire sender(inner, options);
  for (uint64_t i = 0; i < 40; ++i) {
    micro_batch message;
    message.header.kind = i % 2 == 0 ? message_kind::bulk : message_kind::combine;
    message.header.status = combine_status::stale_epoch;
    message.header.step = i;
    REQUIRE(sender.send(addressee, message));
  }
  REQUIRE(eventually([&] { return inner->tries >= 6; }));
  CHECK(inner->taken() == 0);
  CHECK(sender.links().at(0).messages_on_the_way == 40);
  inner->full = false;
  REQUIRE(eventually([&] { return inner->taken() == 40; }));
  for (uint64_t i = 0; i < 20; ++i) {
    CHECK(inner->bulks[i] == 2 * i);
    CHECK(inner->combines[i] == 2 * i + 1);
  }
}

TEST_CASE("an actor's answer from a delivery may be sent over the shaped wire that delivers") {
  two_nodes nodes({.latency_us = 100});
  shaped_wire_options options;
  options.node = 3;
  options.links.set({-1, -1, {.latency_us = 100}});
  shaped_wire third(std::make_shared<local_wire>(nodes.network, 3, 1), options);
  std::promise<uint64_t> ended;
  std::atomic<uint64_t> hops{0};
  nodes.sender->attach(1, [&](micro_batch message) {
    if (++hops == 50)
      ended.set_value(message.header.step);
    else
      CHECK(nodes.sender->send(addressee, std::move(message)));
  });
  nodes.receiver.attach(5, [&](micro_batch message) {
    message.header.send_time_ns = 0;
    CHECK(third.send({1, 1, 1}, std::move(message)));
  });
  REQUIRE(nodes.sender->send(addressee, patterned(nodes.pool, 64, 77)));
  auto result = ended.get_future();
  REQUIRE(result.wait_for(std::chrono::seconds(30)) == std::future_status::ready);
  CHECK(result.get() == 77);
}

TEST_CASE("a shaped wire's thread sleeps while nothing is on the way") {
  two_nodes nodes({.latency_us = 10});
  std::atomic<int> arrived{0};
  nodes.receiver.attach(5, [&](micro_batch) { ++arrived; });
  for (uint64_t i = 0; i < 10; ++i) {
    REQUIRE(nodes.sender->send(addressee, patterned(nodes.pool, 10, i)));
    REQUIRE(eventually([&] { return nodes.sender->statistics().bytes_in_flight == 0; }));
  }
  CHECK(arrived == 10);
  const uint64_t before = nodes.sender->wake_ups();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  // The last hand-over may still be going to sleep.
  CHECK(nodes.sender->wake_ups() <= before + 1);
}

}  // namespace troupe
