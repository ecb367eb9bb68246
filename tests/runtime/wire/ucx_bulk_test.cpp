// Bulk messages: in fragments, behind dispatch and combine.
#include <doctest/doctest.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "tests/runtime/wire/fixture.hpp"

namespace troupe {
namespace {

using namespace wire_test;

constexpr uint64_t mib = uint64_t{1} << 20U;

// A dispatch of one row of `hidden` BF16 values.
micro_batch dispatch_of(buffer_pool& pool, uint32_t id, uint32_t hidden) {
  micro_batch message;
  message.header.kind = message_kind::dispatch;
  message.header.dtype = wire_dtype::bf16;
  message.header.row_count = 1;
  message.header.hidden = hidden;
  message.header.dispatch_id = id;
  message.payload = pool.acquire(uint64_t{2} * hidden);
  std::memset(message.payload->data, static_cast<int>(id & 255U), message.payload->size);
  return message;
}

// What a receiver was given, in order: dispatch ids, and 0 for bulk.
class delivery_log {
 public:
  void add(const micro_batch& arrived) {
    const bool bulk = arrived.header.kind == message_kind::bulk;
    if (bulk && !is_patterned(arrived)) ++damaged_;
    const std::lock_guard lock(mutex_);
    order_.push_back(bulk ? 0 : arrived.header.dispatch_id);
  }
  std::vector<uint32_t> order() const {
    const std::lock_guard lock(mutex_);
    return order_;
  }
  size_t size() const {
    const std::lock_guard lock(mutex_);
    return order_.size();
  }
  bool has(uint32_t id) const {
    const auto now = order();
    return std::ranges::find(now, id) != now.end();
  }
  int damaged() const { return damaged_; }

 private:
  mutable std::mutex mutex_;
  std::vector<uint32_t> order_;
  std::atomic<int> damaged_{0};
};

TEST_CASE("every dispatch sent while a bulk message of 64 MiB is under way is delivered before it") {
  for (const char* transports : {"posix,cma,tcp", "tcp"}) {
    CAPTURE(transports);
    buffer_pool receive_memory(64 * mib);
    buffer_pool dispatches(64 * mib);
    pair_of_wires pair([&](ucx_wire_options& options) {
      options.transports = transports;
      options.bulk_chunks_in_flight = 2;
      options.classes[bulk_class].receive_pool = &receive_memory;
    });
    delivery_log at_one;
    delivery_log at_two;
    pair.one->attach(5, [&](const micro_batch& arrived) { at_one.add(arrived); });
    pair.two->attach(5, [&](const micro_batch& arrived) { at_two.add(arrived); });
    pair.connect();
    uint32_t sent = 0;
    const auto exchange = [&](bool wait) {
      ++sent;
      REQUIRE(send_patiently(*pair.one, pair.at_two, dispatch_of(dispatches, sent, 16'384)));
      REQUIRE(send_patiently(*pair.two, pair.at_one, dispatch_of(dispatches, sent, 16'384)));
      if (wait) REQUIRE(eventually([&] { return at_two.size() == sent && at_one.size() == sent; }));
    };

    // No memory for it yet: two fragments are inside UCX, which is the limit, and wait at the receiver.
    auto blocker = receive_memory.acquire(64 * mib);
    REQUIRE(blocker);
    REQUIRE(pair.one->send(pair.at_two, patterned(pair.pool, 64 * mib, 3)));
    REQUIRE(eventually([&] { return pair.two->counters().held == 2; }));
    for (int i = 0; i < 50; ++i) exchange(true);
    CHECK(pair.one->counters().bulk_fragments == 2);
    CHECK(pair.two->counters().held == 2);

    // With memory it goes on. What is sent while more than one limit's fragments are still to go to UCX is
    // there before the last of them is.
    blocker = {};
    uint32_t before_bulk = sent;
    while (!at_two.has(0)) {
      exchange(false);
      if (pair.one->counters().bulk_fragments + 2 < 128) before_bulk = sent;
      while (at_two.size() + 8 < sent) std::this_thread::yield();
    }
    REQUIRE(eventually([&] { return at_two.size() == sent + 1 && at_one.size() == sent; }));
    const auto order = at_two.order();
    const auto bulk_at = std::ranges::find(order, 0U);
    for (uint32_t id = 1; id <= before_bulk; ++id) CHECK(std::find(order.begin(), bulk_at, id) != bulk_at);
    CHECK(at_two.damaged() == 0);
    CHECK(pair.one->counters().bulk_fragments == 128);
    CHECK(eventually([&] { return pair.one->statistics().bytes_in_flight == 0; }));
    CHECK(pair.pool.bytes_in_use() == 0);
    CHECK(eventually([&] { return receive_memory.bytes_in_use() == 0; }));
    MESSAGE(before_bulk, " dispatches had to come before the bulk message");
  }
}

TEST_CASE("bulk of every length around the fragments' arrives intact both ways, also when memory is short") {
  for (const char* transports : {"posix,cma,tcp", "tcp"}) {
    for (const bool checksum : {false, true}) {
      CAPTURE(transports);
      constexpr uint64_t chunk = 64 * 1024;
      buffer_pool receive_memory(mib);
      pair_of_wires pair([&](ucx_wire_options& options) {
        options.transports = transports;
        options.payload_checksum = checksum;
        options.bulk_chunk_bytes = chunk;
        options.classes[bulk_class].receive_pool = &receive_memory;
      });
      delivery_log arrived;
      const auto add = [&](const micro_batch& message) {
        CHECK(validate(message));
        CHECK(message.header.detail == 0);
        arrived.add(message);
      };
      pair.one->attach(5, add);
      pair.two->attach(5, add);
      pair.connect();
      size_t sent = 0;
      for (const uint64_t bytes : {chunk - 1, chunk, chunk + 1, 2 * chunk, 3 * chunk + 17, 5 * chunk - 1, 8 * chunk}) {
        for (int repeat = 0; repeat < 3; ++repeat) {
          CHECK(send_patiently(*pair.one, pair.at_two, patterned(pair.pool, bytes, bytes + sent)));
          CHECK(send_patiently(*pair.two, pair.at_one, patterned(pair.pool, bytes, bytes + sent + 1)));
          sent += 2;
        }
      }
      CHECK_MESSAGE(eventually([&] { return arrived.size() == sent; }), describe(*pair.one), " / ",
                    describe(*pair.two));
      CHECK(arrived.damaged() == 0);
      CHECK(pair.one->statistics().messages_dropped == 0);
      CHECK(pair.two->counters().sequence_gaps == 0);
      CHECK(pair.two->counters().assemblies == 0);
      CHECK(eventually([&] { return pair.pool.bytes_in_use() == 0 && receive_memory.bytes_in_use() == 0; }));
      CHECK(pair.one->statistics().bytes_in_flight == 0);
    }
  }
}

TEST_CASE("a connection that ends in the middle of bulk leaves nothing behind on either side") {
  std::mt19937_64 random(7);
  for (const char* transports : {"posix,cma,tcp", "tcp"}) {
    CAPTURE(transports);
    buffer_pool receive_memory(64 * mib);
    pair_of_wires pair([&](ucx_wire_options& options) {
      options.transports = transports;
      options.quarantine_ms = 20;
      options.classes[bulk_class].receive_pool = &receive_memory;
    });
    std::atomic<int> damaged{0};
    const auto check = [&](const micro_batch& arrived) {
      if (!is_patterned(arrived)) ++damaged;
    };
    pair.one->attach(5, check);
    pair.two->attach(5, check);
    const auto begun = [](const ucx_wire& wire) {
      return wire.counters().assemblies != 0 || wire.counters().held != 0 || wire.statistics().messages_received != 0;
    };
    for (size_t round = 1; round <= 12; ++round) {
      REQUIRE(pair.one->connect(2, 22, pair.two->listen_address()));
      REQUIRE(eventually(
          [&] { return pair.events_one.count(2, 22, true) == round && pair.events_two.count(1, 11, true) == round; }));
      const auto blocker = round % 3 == 0 ? receive_memory.acquire(64 * mib) : buffer_ref{};
      for (const uint64_t seed : {1, 2}) {
        REQUIRE(pair.one->send(pair.at_two, patterned(pair.pool, 16 * mib, seed)));
        REQUIRE(pair.two->send(pair.at_one, patterned(pair.pool, 16 * mib, seed)));
      }
      REQUIRE(eventually([&] { return begun(*pair.one) && begun(*pair.two); }));
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
      (random() % 2 == 0 ? pair.one->disconnect(2) : pair.two->disconnect(1));
      const uint64_t in_use = blocker ? 64 * mib : 0;
      for (const auto* wire : {pair.one.get(), pair.two.get()}) {
        CHECK_MESSAGE(eventually([&] {
                        const auto now = wire->counters();
                        return now.peers_up == 0 && now.assemblies == 0 && now.held == 0 &&
                               wire->statistics().bytes_in_flight == 0;
                      }),
                      describe(*wire));
      }
      CHECK(eventually([&] { return pair.pool.bytes_in_use() == 0 && receive_memory.bytes_in_use() == in_use; }));
    }
    CHECK(damaged == 0);
  }
}

TEST_CASE("a peer killed in the middle of bulk leaves nothing behind") {
  for (const char* transports : {"posix,cma,tcp", "tcp"}) {
    CAPTURE(transports);
    buffer_pool receive_memory(64 * mib);
    buffer_pool pool(256 * mib);
    event_log events;
    auto options = options_of(1, 1, &events);
    options.transports = transports;
    options.classes[bulk_class].receive_pool = &receive_memory;
    const auto node = wire_of(options);
    node->attach(1, [](const micro_batch&) {});
    for (uint32_t incarnation = 1; incarnation <= 3; ++incarnation) {
      peer_process peer(2, incarnation, transports);
      REQUIRE(node->connect(2, incarnation, peer.address()));
      REQUIRE(eventually([&] { return events.count(2, incarnation, true) == 1; }));
      // It echoes the first; the echo, the second message, or both are under way when it dies.
      const uint64_t received = node->statistics().messages_received;
      for (const uint64_t seed : {1, 2}) REQUIRE(node->send({2, 1, incarnation}, patterned(pool, 24 * mib, seed)));
      REQUIRE(eventually(
          [&] { return node->counters().assemblies != 0 || node->statistics().messages_received != received; }));
      peer.end();
      CHECK(eventually([&] { return events.count(2, incarnation, false) == 1; }));
      CHECK(eventually([&] { return pool.bytes_in_use() == 0 && receive_memory.bytes_in_use() == 0; }));
      CHECK(eventually([&] { return node->statistics().bytes_in_flight == 0; }));
      CHECK(node->counters().assemblies == 0);
    }
  }
}

TEST_CASE("a bulk message of which a fragment finds no place to wait is refused as a whole") {
  buffer_pool receive_memory(4 * mib);
  pair_of_wires pair([&](ucx_wire_options& options) {
    options.classes[bulk_class].receive_pool = &receive_memory;
    options.classes[bulk_class].held_max = 1;
    options.bulk_chunks_in_flight = 2;
  });
  std::atomic<int> received{0};
  pair.two->attach(5, [&](const micro_batch& arrived) { received += is_patterned(arrived) ? 1 : 100; });
  pair.connect();
  auto blocker = receive_memory.acquire(4 * mib);
  REQUIRE(pair.one->send(pair.at_two, patterned(pair.pool, 4 * mib, 1)));
  CHECK(eventually([&] { return pair.two->counters().overflowed == 1; }));
  CHECK(eventually([&] { return pair.one->counters().overflowed == 1; }));  // told by the rejection
  CHECK(pair.one->statistics().bytes_in_flight == 0);
  CHECK(eventually([&] { return pair.two->counters().held == 0 && pair.two->counters().assemblies == 0; }));
  blocker = {};
  REQUIRE(pair.one->send(pair.at_two, patterned(pair.pool, 4 * mib, 2)));
  CHECK(eventually([&] { return received == 1; }));
}

}  // namespace
}  // namespace troupe
