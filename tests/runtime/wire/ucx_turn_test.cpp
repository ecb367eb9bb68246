// Turns: another thread does the work of a wire's progress thread.
#include <doctest/doctest.h>

#include <atomic>
#include <future>
#include <random>
#include <thread>

#include "runtime/wire/wire_time.hpp"
#include "tests/runtime/wire/fixture.hpp"

namespace troupe {
namespace {

using namespace wire_test;

constexpr uint64_t for_ever = UINT64_MAX;

// The progress thread is at work now and then only.
void take_turn(ucx_wire& wire) {
  REQUIRE(eventually([&] { return wire.begin_turn(); }));
}

struct heard {
  std::atomic<int> count{0};
  std::atomic<std::thread::id> by{};
  wire::receiver receiver() {
    return [this](const micro_batch&) {
      by = std::this_thread::get_id();
      ++count;
    };
  }
};

TEST_CASE("in a turn what arrives is delivered by the thread that has it, and afterwards by the progress thread") {
  for (const char* transports : {"posix,cma,tcp", "tcp"})
    for (const uint64_t bytes : {0, 4096, 1 << 20}) {
      CAPTURE(transports);
      CAPTURE(bytes);
      pair_of_wires pair([&](ucx_wire_options& options) { options.transports = transports; });
      heard at_two;
      pair.two->attach(5, at_two.receiver());
      pair.connect();
      take_turn(*pair.two);
      REQUIRE(pair.one->send(pair.at_two, patterned(pair.pool, bytes, 1)));
      pair.two->wait([&] { return at_two.count == 1; }, for_ever);
      CHECK(at_two.by.load() == std::this_thread::get_id());
      pair.two->end_turn();

      REQUIRE(pair.one->send(pair.at_two, patterned(pair.pool, bytes, 2)));
      REQUIRE(eventually([&] { return at_two.count == 2; }));
      CHECK(at_two.by.load() != std::this_thread::get_id());
    }
}

TEST_CASE("what is sent in a turn has left when it ends, and so has what came before") {
  pair_of_wires pair;
  heard at_one;
  pair.one->attach(5, at_one.receiver());
  pair.connect();
  for (int i = 0; i < 20; ++i) {
    take_turn(*pair.two);
    for (int j = 0; j < 3; ++j) REQUIRE(pair.two->send(pair.at_one, patterned(pair.pool, 4096, 1)));
    CHECK(pair.two->statistics().messages_sent == static_cast<uint64_t>(3 * i));
    pair.two->end_turn();
    CHECK(pair.two->statistics().messages_sent == static_cast<uint64_t>(3 * i + 3));
    REQUIRE(eventually([&] { return at_one.count == 3 * i + 3; }));
  }
}

TEST_CASE("a wait in a turn ends at its time, when another thread says so, and when its thread finds out by itself") {
  pair_of_wires pair;
  pair.connect();
  take_turn(*pair.two);
  const uint64_t until = wire_time_ns() + 20'000'000;
  pair.two->wait([] { return false; }, until);
  CHECK(wire_time_ns() >= until);

  std::atomic<bool> over{false};
  std::atomic<int> asked{0};
  std::thread teller([&] {
    while (asked == 0) std::this_thread::yield();
    std::this_thread::sleep_for(20ms);  // in which the waiting thread goes to sleep
    over = true;
    pair.two->end_wait();
  });
  pair.two->wait(
      [&] {
        ++asked;
        return over.load();
      },
      for_ever);
  teller.join();

  pair.two->attach(5, [&](const micro_batch&) { over = true; });
  over = false;
  REQUIRE(pair.one->send(pair.at_two, patterned(pair.pool, 100, 1)));
  pair.two->wait([&] { return over.load(); }, for_ever);
  pair.two->end_turn();
  pair.two->end_wait();  // of nobody
}

TEST_CASE("there is no turn while the progress thread is at work") {
  pair_of_wires pair;
  std::promise<void> begun, go_on;
  pair.two->attach(5, [&](const micro_batch&) {
    begun.set_value();
    go_on.get_future().wait();
  });
  pair.connect();
  REQUIRE(pair.one->send(pair.at_two, patterned(pair.pool, 100, 1)));
  begun.get_future().wait();
  CHECK(!pair.two->begin_turn());
  go_on.set_value();
  take_turn(*pair.two);
  pair.two->end_turn();
}

TEST_CASE(
    "a thread that waits in its turn obeys: connections are made and dropped, and settling waits for its deliveries") {
  pair_of_wires pair;
  std::atomic<bool> stop{false};
  std::thread leader([&] {
    take_turn(*pair.two);
    pair.two->wait([&] { return stop.load(); }, for_ever);
    pair.two->end_turn();
  });
  pair.connect();
  check_settling(pair);
  pair.two->disconnect(1);
  CHECK(eventually([&] { return pair.events_one.count(2, 22, false) == 1; }));
  stop = true;
  pair.two->end_wait();
  leader.join();
}

TEST_CASE("with turns taken at any time nothing is lost, twice there, or left waiting") {
  constexpr uint64_t seed = 20261201;
  pair_of_wires pair;
  std::atomic<int> at_one{0}, at_two{0};
  pair.one->attach(5, [&](const micro_batch&) { ++at_one; });
  // Each message is answered by whoever delivers it.
  pair.two->attach(5, [&](const micro_batch& arrived) {
    ++at_two;
    CHECK(send_patiently(*pair.two, pair.at_one, patterned(pair.pool, arrived.payload ? arrived.payload->size : 0, 1)));
  });
  pair.connect();
  constexpr int rounds = 400;
  std::atomic<bool> stop{false};
  const auto take_turns = [&](ucx_wire& wire, uint64_t own_seed) {
    std::mt19937_64 draw(own_seed);
    while (!stop) {
      if (!wire.begin_turn()) {
        std::this_thread::yield();
        continue;
      }
      if (draw() % 2 == 0) wire.progress();
      if (draw() % 2 == 0) wire.wait([&] { return stop.load(); }, wire_time_ns() + draw() % 2'000'000);
      wire.end_turn();
      if (draw() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(draw() % 2000));
    }
  };
  std::thread first(take_turns, std::ref(*pair.one), seed), second(take_turns, std::ref(*pair.two), seed + 1);
  std::mt19937_64 draw(seed + 2);
  for (int i = 0; i < rounds; ++i) {
    constexpr uint64_t sizes[] = {0, 100, 4096, 100'000};
    REQUIRE(send_patiently(*pair.one, pair.at_two, patterned(pair.pool, sizes[draw() % 4], 1)));
    // With one at a time under way, one that is left waiting shows.
    REQUIRE(eventually([&] { return at_one == i + 1; }));
  }
  stop = true;
  pair.one->end_wait();
  pair.two->end_wait();
  first.join();
  second.join();
  CHECK(at_two == rounds);
  CHECK(eventually([&] { return pair.pool.bytes_in_use() == 0; }));
}

}  // namespace
}  // namespace troupe
