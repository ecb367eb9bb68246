// Two wires in one process, connected over UCX.
#include <doctest/doctest.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "tests/runtime/wire/fixture.hpp"

namespace troupe {
namespace {

using namespace wire_test;

TEST_CASE("messages of 0 bytes to 8 MiB arrive intact in both directions and every buffer returns") {
  for (const char* transports : {"posix,cma,tcp", "tcp"}) {
    for (const bool checksum : {false, true}) {
      CAPTURE(transports);
      buffer_pool receive_pool(uint64_t{64} << 20U);
      pair_of_wires pair([&](ucx_wire_options& options) {
        options.transports = transports;
        options.payload_checksum = checksum;
        for (auto& one : options.classes) one.receive_pool = &receive_pool;
      });
      std::atomic<int> intact{0};
      const auto count = [&](micro_batch arrived) {
        const bool checksummed = (arrived.header.flags & 1U) != 0;
        if (validate(arrived) && is_patterned(arrived) && checksummed == (checksum && arrived.payload)) ++intact;
      };
      pair.one->attach(5, count);
      pair.two->attach(5, count);
      pair.connect();
      int sent = 0;
      for (const uint64_t bytes : {0, 1, 63, 64, 4096, 65535, 65536, 65537, 1 << 20, (8 << 20) - 3, 8 << 20}) {
        const auto message = patterned(pair.pool, bytes, bytes + 7);
        CHECK(send_patiently(*pair.one, pair.at_two, message));
        CHECK(send_patiently(*pair.two, pair.at_one, message));
        sent += 2;
      }
      CHECK(eventually([&] { return intact == sent; }));
      CHECK(eventually([&] { return pair.pool.bytes_in_use() == 0 && receive_pool.bytes_in_use() == 0; }));
      CHECK(pair.one->statistics().bytes_in_flight == 0);
      CHECK(pair.one->statistics().messages_dropped == 0);
    }
  }
}

TEST_CASE("what is sent before the connection is up waits and arrives in order") {
  pair_of_wires pair;
  std::vector<uint64_t> steps;
  std::atomic<int> received{0};
  pair.two->attach(5, [&](micro_batch arrived) {
    steps.push_back(arrived.header.step);
    ++received;
  });
  REQUIRE(pair.one->connect(2, 22, pair.two->listen_address()));
  for (uint64_t i = 0; i < 20; ++i) REQUIRE(pair.one->send(pair.at_two, patterned(pair.pool, 100, i)));
  REQUIRE(eventually([&] { return received == 20; }));
  for (uint64_t i = 0; i < 20; ++i) CHECK(steps[i] == i);
  CHECK(pair.events_one.last_unit() == 102);
  CHECK(pair.two->counters().sequence_gaps == 0);
}

TEST_CASE("both nodes may connect at the same moment and each message arrives once") {
  for (int round = 0; round < 10; ++round) {
    pair_of_wires pair;
    std::atomic<int> at_one{0};
    std::atomic<int> at_two{0};
    pair.one->attach(5, [&](micro_batch) { ++at_one; });
    pair.two->attach(5, [&](micro_batch) { ++at_two; });
    std::thread other([&] { CHECK(pair.two->connect(1, 11, pair.one->listen_address())); });
    CHECK(pair.one->connect(2, 22, pair.two->listen_address()));
    other.join();
    for (uint64_t i = 0; i < 50; ++i) {
      CHECK(pair.one->send(pair.at_two, patterned(pair.pool, 100, i)));
      CHECK(pair.two->send(pair.at_one, patterned(pair.pool, 100, i)));
    }
    CHECK_MESSAGE(eventually([&] { return at_one == 50 && at_two == 50; }), describe(*pair.one), " / ",
                  describe(*pair.two));
    CHECK(pair.events_one.count(2, 22, true) == 1);
    CHECK(pair.events_two.count(1, 11, true) == 1);
    CHECK_MESSAGE(eventually([&] { return pair.one->counters().links == 1 && pair.two->counters().links == 1; }),
                  describe(*pair.one), " / ", describe(*pair.two));
    CHECK(pair.events_one.count(2, 22, false) == 0);
    CHECK(pair.events_two.count(1, 11, false) == 0);
    CHECK(pair.one->statistics().messages_dropped == 0);
  }
}

TEST_CASE("connecting again to a connected node changes nothing") {
  pair_of_wires pair;
  pair.connect();
  REQUIRE(pair.one->connect(2, 22, pair.two->listen_address()));
  REQUIRE(pair.two->connect(1, 11, pair.one->listen_address()));
  std::atomic<int> received{0};
  pair.two->attach(5, [&](micro_batch) { ++received; });
  REQUIRE(pair.one->send(pair.at_two, patterned(pair.pool, 10, 1)));
  CHECK(eventually([&] { return received == 1; }));
  CHECK(pair.events_one.count(2, 22, true) == 1);
  CHECK(pair.events_one.count(2, 22, false) == 0);
}

TEST_CASE("a message to the node itself is delivered without a copy") {
  pair_of_wires pair;
  const auto message = patterned(pair.pool, 1000, 3);
  const std::byte* arrived_at = nullptr;
  pair.one->attach(5, [&](micro_batch arrived) { arrived_at = arrived.payload->data; });
  REQUIRE(pair.one->send(pair.at_one, message));
  CHECK(arrived_at == message.payload->data);
  CHECK(pair.one->send({1, 5, 12}, message).failure().code == errc::unavailable);
}

TEST_CASE("sends to unknown nodes, other incarnations and with wrong counts are refused") {
  pair_of_wires pair;
  pair.connect();
  CHECK(pair.one->send({9, 5, 1}, patterned(pair.pool, 10, 1)).failure().code == errc::unavailable);
  CHECK(pair.one->send({2, 5, 21}, patterned(pair.pool, 10, 1)).failure().code == errc::unavailable);
  CHECK(pair.one->send({2, 5, 23}, patterned(pair.pool, 10, 1)).failure().code == errc::unavailable);
  auto wrong = patterned(pair.pool, 10, 1);
  wrong.header.kind = message_kind::dispatch;
  wrong.header.hidden = 8;
  CHECK(pair.one->send(pair.at_two, wrong).failure().code == errc::invalid_argument);
  wrong = {};
  CHECK(pair.pool.bytes_in_use() == 0);
}

TEST_CASE("a stream of thousands of messages of random sizes in both directions arrives intact") {
  for (const uint64_t largest : {uint64_t{4} << 10U, uint64_t{1} << 20U}) {
    const int count = largest > 100000 ? 1500 : 5000;
    CAPTURE(largest);
    pair_of_wires pair;
    pair.connect();
    std::atomic<int> intact{0};
    std::atomic<int> damaged{0};
    const auto check = [&](micro_batch arrived) { is_patterned(arrived) ? ++intact : ++damaged; };
    pair.one->attach(5, check);
    pair.two->attach(5, check);
    const auto stream = [&](ucx_wire& from, endpoint to, uint64_t seed) {
      buffer_pool pool(uint64_t{32} << 20U);
      std::mt19937_64 random(seed);
      for (int i = 0; i < count; ++i) {
        const auto message = patterned(pool, random() % largest, random());
        if (!send_patiently(from, to, message)) ++damaged;
      }
      CHECK(eventually([&] { return pool.bytes_in_use() == 0; }, 60s));
    };
    std::thread back([&] { stream(*pair.two, pair.at_one, 2); });
    stream(*pair.one, pair.at_two, 1);
    back.join();
    CHECK(eventually([&] { return intact + damaged == 2 * count; }, 60s));
    CHECK(damaged == 0);
    CHECK(pair.one->statistics().messages_dropped == 0);
  }
}

TEST_CASE("bytes in flight are bounded per class, and sending works again once they have gone") {
  for (const uint64_t bytes : {uint64_t{32} << 10U, uint64_t{1} << 20U}) {
    CAPTURE(bytes);
    pair_of_wires pair([](ucx_wire_options& options) {
      for (auto& one : options.classes) one.bytes_in_flight_max = uint64_t{4} << 20U;
    });
    std::atomic<int> received{0};
    pair.two->attach(5, [&](micro_batch) { ++received; });
    // To an address where nobody answers: what is sent waits.
    REQUIRE(pair.one->connect(2, 22, pair.two->listen_address()));
    const auto message = patterned(pair.pool, bytes, 1);
    int sent = 0;
    bool refused = false;
    for (int i = 0; i < 100'000 && !refused; ++i) {
      const auto outcome = pair.one->send(pair.at_two, message);
      if (outcome) ++sent;
      refused = !outcome && outcome.failure().code == errc::exhausted;
    }
    CHECK(refused);
    // Another class is not blocked by it.
    micro_batch refusal_message;
    refusal_message.header.kind = message_kind::combine;
    refusal_message.header.status = combine_status::stale_epoch;
    CHECK(pair.one->send(pair.at_two, refusal_message));
    ++sent;
    CHECK(send_patiently(*pair.one, pair.at_two, message));
    ++sent;
    CHECK_MESSAGE(eventually([&] { return received == sent; }), sent, " / ", describe(*pair.one), " / ",
                  describe(*pair.two));
    CHECK(eventually([&] { return pair.one->statistics().bytes_in_flight == 0; }));
  }
}

TEST_CASE("when receive memory is used up messages wait, and other classes go on") {
  for (const uint64_t bytes : {uint64_t{16} << 10U, uint64_t{512} << 10U}) {
    CAPTURE(bytes);
    buffer_pool small(uint64_t{1} << 20U);
    buffer_pool other(uint64_t{1} << 20U);
    pair_of_wires pair([&](ucx_wire_options& options) {
      options.classes[0].receive_pool = &other;
      options.classes[1].receive_pool = &other;
      options.classes[2].receive_pool = &small;
      options.bulk_chunks_in_flight = 16;  // all of them, so that all wait at the receiver
    });
    pair.connect();
    std::mutex mutex;
    std::vector<micro_batch> kept;
    std::atomic<int> intact{0};
    std::atomic<int> refusals{0};
    pair.two->attach(5, [&](micro_batch arrived) {
      if (arrived.header.kind == message_kind::combine) {
        ++refusals;
        return;
      }
      if (is_patterned(arrived)) ++intact;
      const std::lock_guard lock(mutex);
      kept.push_back(std::move(arrived));
    });
    const int fitting = static_cast<int>((uint64_t{1} << 20U) / bytes);
    const int count = fitting * 3;
    for (int i = 0; i < count; ++i)
      REQUIRE(send_patiently(*pair.one, pair.at_two, patterned(pair.pool, bytes, static_cast<uint64_t>(i))));
    REQUIRE(eventually([&] { return pair.two->counters().held == static_cast<uint64_t>(count - fitting); }));
    CHECK(intact == fitting);
    micro_batch refusal_message;
    refusal_message.header.kind = message_kind::combine;
    refusal_message.header.status = combine_status::stale_epoch;
    CHECK(pair.one->send(pair.at_two, refusal_message));
    CHECK(eventually([&] { return refusals == 1; }));
    for (int round = 0; round < 3; ++round) {
      CHECK(eventually([&] { return intact == fitting * (round + 1); }));
      const std::lock_guard lock(mutex);
      kept.clear();
    }
    CHECK(pair.two->counters().held == 0);
    CHECK(pair.one->statistics().messages_dropped == 0);
    CHECK(eventually([&] { return pair.pool.bytes_in_use() == 0 && small.bytes_in_use() == 0; }));
  }
}

TEST_CASE("too many messages that wait for memory are dropped and counted, not kept") {
  buffer_pool small(uint64_t{128} << 10U);
  pair_of_wires pair([&](ucx_wire_options& options) {
    options.classes[2].receive_pool = &small;
    options.classes[2].held_max = 4;
  });
  pair.connect();
  std::mutex mutex;
  std::vector<micro_batch> kept;
  pair.two->attach(5, [&](micro_batch arrived) {
    const std::lock_guard lock(mutex);
    kept.push_back(std::move(arrived));
  });
  for (uint64_t i = 0; i < 20; ++i) REQUIRE(pair.one->send(pair.at_two, patterned(pair.pool, 65536, i)));
  CHECK(eventually([&] { return pair.two->counters().overflowed == 14; }));
  CHECK(pair.two->counters().held == 4);
  CHECK(eventually([&] { return pair.one->counters().overflowed == 14; }));  // told by the rejection
  pair.one.reset();
  CHECK(eventually([&] { return pair.two->counters().held == 0; }));
  pair.two.reset();
  kept.clear();
  CHECK(pair.pool.bytes_in_use() == 0);
}

TEST_CASE("a message to a slot without a receiver is dropped and counted") {
  pair_of_wires pair;
  pair.connect();
  REQUIRE(pair.one->send({2, 77, 22}, patterned(pair.pool, 10, 1)));
  CHECK(eventually([&] { return pair.two->counters().unaddressed == 1; }));
  CHECK(eventually([&] { return pair.pool.bytes_in_use() == 0; }));
}

TEST_CASE("settling waits for a delivery that had begun, and for none on the progress thread") {
  pair_of_wires pair;
  pair.connect();
  check_settling(pair);
}

TEST_CASE("a wire lets one handler run on its thread for a message unless its options say otherwise") {
  auto options = options_of(1, 11);
  CHECK(wire_of(options)->handlers_most() == 1);
  options.handlers_most = 0;
  CHECK(wire_of(options)->handlers_most() == 0);
}

TEST_CASE("a wire waits for the answer to a large payload as long as that takes, but not for ever") {
  ucx_wire_options options;
  options.rendezvous_bytes = 64 << 10;
  options.spin_large_us = 2000;
  CHECK(spin_after_ns(options, 0) == 0);
  CHECK(spin_after_ns(options, (64 << 10) - 1) == 0);
  CHECK(spin_after_ns(options, 64 << 10) == 128 << 10);
  CHECK(spin_after_ns(options, 1 << 20) == 2'000'000);
  options.spin_large_us = 0;  // where compute threads take up all CPUs
  CHECK(spin_after_ns(options, 1 << 20) == 0);
}

TEST_CASE("many threads may send at once") {
  pair_of_wires pair;
  pair.connect();
  std::atomic<int> received{0};
  pair.two->attach(5, [&](micro_batch arrived) { received += is_patterned(arrived) ? 1 : 1000; });
  std::vector<std::thread> senders;
  for (uint64_t t = 0; t < 4; ++t)
    senders.emplace_back([&, t] {
      for (uint64_t i = 0; i < 500; ++i)
        if (!send_patiently(*pair.one, pair.at_two, patterned(pair.pool, 200 + i, t * 1000 + i))) received += 1000;
    });
  for (auto& sender : senders) sender.join();
  CHECK(eventually([&] { return received == 2000; }));
  CHECK(eventually([&] { return pair.pool.bytes_in_use() == 0; }));
}

TEST_CASE("the progress thread sleeps when there is nothing to do") {
  pair_of_wires pair;
  pair.connect();
  CHECK(eventually([&] { return pair.one->counters().sleeps > 0 && pair.two->counters().sleeps > 0; }));
}

TEST_CASE("wrong options and addresses are refused with a sentence") {
  auto options = options_of(1, 1);
  options.listen = "nowhere";
  CHECK(ucx_wire::make(options).failure().code == errc::invalid_argument);
  options = options_of(1, 1);
  options.listen = "127.0.0.1:70000";
  CHECK(ucx_wire::make(options).failure().code == errc::invalid_argument);
  options = options_of(1, 1);
  options.classes[1].receive_bytes_max = 100;
  CHECK(ucx_wire::make(options).failure().code == errc::invalid_argument);
  const auto wire = wire_of(options_of(1, 1));
  CHECK(wire->connect(2, 1, "127.0.0.1").failure().code == errc::invalid_argument);
  CHECK(wire->connect(1, 1, "127.0.0.1:80").failure().code == errc::invalid_argument);
  options = options_of(3, 1);
  options.listen = wire->listen_address();
  const auto taken = ucx_wire::make(options);
  REQUIRE_FALSE(taken);
  MESSAGE(taken.failure().message);
}

}  // namespace
}  // namespace troupe
