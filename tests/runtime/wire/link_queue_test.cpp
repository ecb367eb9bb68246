// Links in exact numbers: what leaves when, in which order, and when it arrives.
#include "runtime/wire/link_queue.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <random>
#include <string>
#include <vector>

namespace troupe {
namespace {

constexpr uint64_t header_bytes = sizeof(micro_batch_header);

struct arrival {
  uint64_t tag = 0;
  uint64_t at_ns = 0;
  bool operator==(const arrival&) const = default;
};

// `bytes` on the link, header included; the tag is told again on arrival.
micro_batch message_of(message_kind kind, uint64_t bytes, uint64_t tag) {
  micro_batch message;
  message.header.kind = kind;
  message.header.payload_bytes = bytes - header_bytes;
  message.header.step = tag;
  return message;
}

void push(link_queue& queue, message_kind kind, uint64_t bytes, uint64_t tag, uint64_t now_ns) {
  queue.push({1, 0, 1}, message_of(kind, bytes, tag), now_ns);
}

// Sleeps as a wire does: from event to event.
std::vector<arrival> drain(link_queue& queue) {
  std::vector<arrival> out;
  while (const auto now_ns = queue.next_event_ns())
    while (const auto one = queue.pop(*now_ns)) out.push_back({one->message.header.step, *now_ns});
  return out;
}

link_queue queue_of(link_shape shape, uint64_t bulk_chunk_bytes = 1000) {
  return link_queue({0, 1, 7}, shape, bulk_chunk_bytes);
}

constexpr auto dispatch = message_kind::dispatch;
constexpr auto combine = message_kind::combine;
constexpr auto bulk = message_kind::bulk;

// 1 MB/s: a byte a microsecond.
constexpr link_shape slow{.latency_us = 50, .bandwidth_mb_s = 1, .jitter_us = 0};

}  // namespace

TEST_CASE("a link's transfer takes its bytes at the bandwidth and then the latency") {
  CHECK(slow.transfer_ns(1000) == 1'050'000);
  CHECK(link_shape{.latency_us = 0.5}.transfer_ns(1 << 20) == 500);
  CHECK(link_shape{.bandwidth_mb_s = 3}.transfer_ns(1) == 334);  // rounded up
  CHECK(link_shape{}.transfer_ns(1 << 30) == 0);
  CHECK(link_shape{}.is_open());
  CHECK_FALSE(link_shape{.jitter_us = 1}.is_open());
}

TEST_CASE("messages take the link one after another at its bandwidth") {
  auto queue = queue_of(slow);
  push(queue, dispatch, 1000, 1, 0);
  push(queue, combine, 500, 2, 0);
  push(queue, dispatch, 200, 3, 1'000'000);
  push(queue, dispatch, 300, 4, 9'000'000);
  CHECK(drain(queue) == std::vector<arrival>{{1, 1'050'000}, {2, 1'550'000}, {3, 1'750'000}, {4, 9'350'000}});
  const auto& counters = queue.counters();
  CHECK(counters.messages == 4);
  CHECK(counters.bytes == 2000);
  CHECK(counters.busy_ns == 2'000'000);
  CHECK(counters.wait_ns == 1'000'000 + 500'000);  // the second for the first, the third for both
  CHECK(queue.empty());
}

TEST_CASE("dispatches and combines take a link that becomes free before bulk does, after one chunk at most") {
  auto queue = queue_of(slow);
  push(queue, bulk, 2500, 1, 0);
  push(queue, bulk, 128, 2, 0);
  push(queue, dispatch, 400, 3, 100'000);
  push(queue, combine, 200, 4, 1'200'000);
  push(queue, combine, 200, 5, 1'200'000);
  CHECK(drain(queue) == std::vector<arrival>{{3, 1'450'000},  // after the first chunk
                                             {4, 1'650'000},
                                             {5, 1'850'000},
                                             {1, 3'350'000},  // its other 1500 bytes in two chunks
                                             {2, 3'478'000}});
}

TEST_CASE("what starts in the same instant goes by priority, not by the order of the pushes") {
  auto queue = queue_of(slow);
  push(queue, bulk, 300, 1, 10);
  push(queue, dispatch, 200, 2, 10);
  CHECK(drain(queue) == std::vector<arrival>{{2, 250'010}, {1, 550'010}});
}

TEST_CASE("a link that is asked late has lost no bandwidth and has decided nothing differently") {
  auto queue = queue_of(slow);
  push(queue, bulk, 1500, 1, 0);
  push(queue, dispatch, 1000, 2, 1'100'000);  // the last bulk chunk holds the link until 1'500'000
  std::vector<uint64_t> order;
  while (const auto one = queue.pop(100'000'000)) order.push_back(one->message.header.step);
  CHECK(order == std::vector<uint64_t>{1, 2});
  push(queue, dispatch, 1000, 3, 100'000'000);
  CHECK(queue.next_event_ns() == 101'050'000);
  CHECK(queue.counters().busy_ns == 2'500'000);
}

TEST_CASE("an unlimited link only delays, and an open one delivers at once") {
  auto queue = queue_of({.latency_us = 10});
  for (uint64_t i = 0; i < 3; ++i) push(queue, bulk, 1 << 20, i, i);
  CHECK(drain(queue) == std::vector<arrival>{{0, 10'000}, {1, 10'001}, {2, 10'002}});
  auto open = queue_of({});
  push(open, dispatch, 1000, 9, 5);
  CHECK(open.pop(5)->message.header.step == 9);
}

TEST_CASE("jitter stays within its bound, repeats with its seed, and reorders nothing of one class") {
  const link_shape shape{.latency_us = 100, .bandwidth_mb_s = 100, .jitter_us = 500};
  const auto run = [&](link_identity link, uint64_t seed) {
    link_queue queue(link, shape, 1000);
    std::mt19937_64 draw(seed);
    std::vector<uint64_t> pushed_ns;
    uint64_t now_ns = 0;
    std::vector<arrival> arrivals;
    uint64_t delayed = 0;
    const message_kind kinds[] = {dispatch, combine, bulk};
    std::vector<uint64_t> last(3, 0);
    for (uint64_t i = 0; i < 2000; ++i) {
      now_ns += draw() % 40'000;
      push(queue, kinds[i % 3], header_bytes + draw() % 3000, i, now_ns);
      pushed_ns.push_back(now_ns);
      while (const auto one = queue.pop(now_ns)) arrivals.push_back({one->message.header.step, now_ns});
    }
    for (const auto& rest : drain(queue)) arrivals.push_back(rest);
    REQUIRE(arrivals.size() == pushed_ns.size());
    for (const auto& one : arrivals) {
      CHECK(one.at_ns >= pushed_ns[one.tag] + 100'000);
      delayed += one.at_ns > pushed_ns[one.tag] + 350'000 ? 1 : 0;
      auto& before = last[one.tag % 3];
      CHECK(one.tag >= before);
      before = one.tag;
    }
    CHECK(delayed > 100);
    return arrivals;
  };
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    CAPTURE(seed);
    const auto first = run({0, 1, seed}, seed);
    CHECK(run({0, 1, seed}, seed) == first);
    CHECK(run({1, 0, seed}, seed) != first);
    CHECK(run({0, 1, seed + 1}, seed) != first);
  }
}

TEST_CASE("jitter is at most what the shape says, and spreads over it") {
  auto queue = queue_of({.jitter_us = 1});
  uint64_t least = std::numeric_limits<uint64_t>::max();
  uint64_t most = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    const uint64_t now_ns = i * 10'000;
    push(queue, dispatch, 500, i, now_ns);
    while (!queue.empty()) {
      const uint64_t at_ns = *queue.next_event_ns();
      if (queue.pop(at_ns)) {
        least = std::min(least, at_ns - now_ns);
        most = std::max(most, at_ns - now_ns);
      }
    }
  }
  CHECK(least < 100);
  CHECK(most > 900);
  CHECK(most <= 1000);
}

TEST_CASE("dropping what is on the way gives its memory back") {
  buffer_pool pool(1 << 20);
  auto queue = queue_of(slow);
  for (const auto kind : {dispatch, combine, bulk}) {
    micro_batch message;
    message.header.kind = kind;
    message.payload = pool.acquire(5000);
    message.header.payload_bytes = 5000;
    queue.push({1, 0, 1}, std::move(message), 0);
  }
  CHECK_FALSE(queue.pop(5'150'000));  // the first has left and not arrived
  CHECK(queue.size() == 3);
  queue.clear();
  CHECK(queue.empty());
  CHECK_FALSE(queue.next_event_ns());
  CHECK(pool.bytes_in_use() == 0);
}

TEST_CASE("the most specific rule shapes a link") {
  const std::vector<link_rule> rules = {
      {-1, -1, {.latency_us = 1}}, {-1, 2, {.latency_us = 2}}, {0, -1, {.latency_us = 3}}, {0, 2, {.latency_us = 4}}};
  REQUIRE(validate(rules, 4));
  const link_table table({.latency_us = 9}, rules);
  CHECK(table.find(0, 2).latency_us == 4);
  CHECK(table.find(0, 1).latency_us == 3);
  CHECK(table.find(1, 2).latency_us == 2);
  CHECK(table.find(2, 0).latency_us == 1);
  CHECK(link_table({.latency_us = 9}).find(2, 0).latency_us == 9);
  CHECK(link_table().find(2, 0).is_open());
}

TEST_CASE("wrong link rules are refused with a sentence that names entry and field") {
  const auto why = [](std::vector<link_rule> rules) {
    const auto valid = validate(rules, 4);
    return valid ? std::string() : valid.failure().message;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(why({{0, 1, {.latency_us = 5}}, {4, 0, {}}}) ==
        "links, entry 2: from is 4; it must be a node from 0 to 3, or -1 for any");
  CHECK(why({{0, -2, {}}}).find("to is -2") != std::string::npos);
  CHECK(why({{1, 1, {}}}).find("no link to itself") != std::string::npos);
  CHECK(why({{0, 1, {.latency_us = nan}}}).find("latency_us") != std::string::npos);
  CHECK(why({{0, 1, {.latency_us = -1}}}).find("latency_us") != std::string::npos);
  CHECK(why({{0, 1, {.bandwidth_mb_s = -3}}}).find("bandwidth_mb_s") != std::string::npos);
  CHECK(why({{0, 1, {.jitter_us = 1e9}}}).find("jitter_us") != std::string::npos);
  CHECK(why({{0, 1, {}}, {0, 1, {}}}).find("same from and to") != std::string::npos);
  CHECK(why({}).empty());
}

}  // namespace troupe
