// Connections that break, and are made anew.
#include <doctest/doctest.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "tests/runtime/wire/fixture.hpp"

namespace troupe {
namespace {

using namespace wire_test;
using clock = std::chrono::steady_clock;

constexpr uint16_t dispatch_slot = 5;
constexpr uint16_t combine_slot = 6;
constexpr uint16_t bulk_slot = 7;

// A node that sends numbered dispatches, resends those that stay unanswered as a shard does, and answers
// its peer's.
class resending_node {
 public:
  resending_node(ucx_wire& wire, buffer_pool& pool, endpoint peer, uint64_t seed)
      : wire_(wire), pool_(pool), peer_(peer), random_(seed) {
    wire_.attach(dispatch_slot, [this](const micro_batch& asked) { answer(asked); });
    wire_.attach(combine_slot, [this](const micro_batch& answer) { note(answer); });
    wire_.attach(bulk_slot, [this](const micro_batch& bulk) {
      if (!is_patterned(bulk)) ++damaged_;
    });
    thread_ = std::thread([this] { run(); });
  }
  // The wire delivers nothing to it any more when it is destroyed.
  ~resending_node() { finish(); }
  resending_node(const resending_node&) = delete;
  resending_node& operator=(const resending_node&) = delete;

  // Begins no more dispatches; returns when all are answered, or after a minute.
  void finish() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  uint32_t begun() const { return begun_; }
  uint32_t answered() const { return answered_; }
  int damaged() const { return damaged_; }

 private:
  struct open_dispatch {
    uint32_t id = 0;  // 0: none
    clock::time_point sent;
  };

  static micro_batch message_of(buffer_pool& pool, message_kind kind, uint32_t id, uint32_t hidden) {
    micro_batch message;
    auto& header = message.header;
    header.kind = kind;
    header.dtype = wire_dtype::bf16;
    header.row_count = 1;
    header.pair_count = 1;
    header.hidden = hidden;
    header.dispatch_id = id;
    message.payload = pool.acquire(payload_bytes(header.dtype, hidden, 1, 1));
    if (!message.payload) return message;
    pairs(message)[0] = {};
    std::memset(rows(message), static_cast<int>(id & 255U), row_bytes(header.dtype, hidden, 1));
    return message;
  }
  static uint32_t hidden_of(uint32_t id) {
    constexpr uint32_t sizes[] = {64, 2048, 30'000, 40'000, 65'536};  // up to 128 KiB: eager and rendezvous
    return sizes[id % std::size(sizes)];
  }
  bool intact(const micro_batch& message) const {
    const auto& header = message.header;
    if (header.hidden != hidden_of(header.dispatch_id)) return false;
    const auto* const data = reinterpret_cast<const unsigned char*>(rows(message));
    return std::all_of(data, data + row_bytes(header.dtype, header.hidden, 1),
                       [&](unsigned char byte) { return byte == (header.dispatch_id & 255U); });
  }

  void send(uint16_t slot, micro_batch message) {
    if (message.payload) (void)wire_.send({peer_.node, slot, peer_.incarnation}, std::move(message));
  }
  void answer(const micro_batch& asked) {
    if (!intact(asked)) ++damaged_;
    send(combine_slot, message_of(pool_, message_kind::combine, asked.header.dispatch_id, asked.header.hidden));
  }
  void note(const micro_batch& answer) {
    if (!intact(answer)) ++damaged_;
    const std::lock_guard lock(mutex_);
    for (auto& one : open_) {
      if (one.id != answer.header.dispatch_id) continue;
      one.id = 0;
      ++answered_;
    }
  }

  void run() {
    clock::time_point end = clock::time_point::max();
    for (;;) {
      if (stop_ && end == clock::time_point::max()) end = clock::now() + 60s;
      bool all_answered = true;
      for (auto& one : open_) {
        uint32_t id = 0;
        {
          const std::lock_guard lock(mutex_);
          if (one.id == 0 && !stop_) {
            one.id = ++begun_;
          } else if (one.id == 0 || clock::now() - one.sent < 30ms) {
            all_answered = all_answered && one.id == 0;
            continue;
          }
          one.sent = clock::now();
          id = one.id;
          all_answered = false;
        }
        send(dispatch_slot, message_of(pool_, message_kind::dispatch, id, hidden_of(id)));
        if (random_() % 64 == 0) send(bulk_slot, patterned(pool_, 1'500'000, id));
      }
      if ((stop_ && all_answered) || clock::now() > end) return;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }

  ucx_wire& wire_;
  buffer_pool& pool_;
  const endpoint peer_;
  std::mt19937_64 random_;
  std::mutex mutex_;
  std::array<open_dispatch, 16> open_;
  std::atomic<uint32_t> begun_{0};
  std::atomic<uint32_t> answered_{0};
  std::atomic<int> damaged_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

void cut_and_check(const std::string& transports, uint64_t seed) {
  CAPTURE(transports);
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  buffer_pool receive_memory(uint64_t{256} << 20U);
  pair_of_wires pair([&](ucx_wire_options& options) {
    options.transports = transports;
    options.reconnect_min_ms = 5;
    // A peer that has not noticed yet may still fetch from the memory of what was cut off. The quarantine
    // keeps it long enough unless this machine stops for as long; the checksum would then tell.
    options.quarantine_ms = 1000;
    options.payload_checksum = true;
    for (auto& one : options.classes) one.receive_pool = &receive_memory;
  });
  {
    resending_node one(*pair.one, pair.pool, {2, 0, 22}, seed + 1);
    resending_node two(*pair.two, pair.pool, {1, 0, 11}, seed + 2);
    REQUIRE(pair.one->connect(2, 22, pair.two->listen_address()));
    REQUIRE(pair.two->connect(1, 11, pair.one->listen_address()));
    REQUIRE(eventually([&] { return pair.one->counters().peers_up == 1 && pair.two->counters().peers_up == 1; }));
    // Each connection that breaks is down on both sides.
    const auto downs = [&] { return pair.events_one.count(2, 22, false) + pair.events_two.count(1, 11, false); };
    for (int cuts = 0; downs() < 200; ++cuts) {
      REQUIRE(cuts < 10'000);
      const bool at_one = random() % 2 == 0;
      ucx_wire& wire = at_one ? *pair.one : *pair.two;
      // Most find the connection up; every fourth comes whenever it comes, as during a handshake.
      if (cuts % 4 != 0)
        REQUIRE_MESSAGE(eventually([&] { return wire.counters().peers_up == 1; }), describe(*pair.one), " / ",
                        describe(*pair.two));
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 8000));
      wire.cut(at_one ? 2 : 1);
    }
    one.finish();
    two.finish();
    CHECK_MESSAGE(one.answered() == one.begun(), describe(*pair.one), " / ", describe(*pair.two));
    CHECK_MESSAGE(two.answered() == two.begun(), describe(*pair.one), " / ", describe(*pair.two));
    CHECK(one.begun() > 0);
    CHECK(one.damaged() + two.damaged() == 0);
    for (const auto* wire : {pair.one.get(), pair.two.get()}) {
      CHECK_MESSAGE(eventually([&] {
                      const auto now = wire->counters();
                      return now.peers_up == 1 && now.links == 1 && now.held == 0 && now.assemblies == 0 &&
                             now.quarantined == 0 && wire->statistics().bytes_in_flight == 0;
                    }),
                    describe(*wire));
    }
    CHECK(eventually([&] { return pair.pool.bytes_in_use() == 0 && receive_memory.bytes_in_use() == 0; }));
    // Every down has its up, and at the end one more.
    CHECK(eventually([&] { return pair.events_one.count(2, 22, true) == pair.events_one.count(2, 22, false) + 1; }));
    CHECK(eventually([&] { return pair.events_two.count(1, 11, true) == pair.events_two.count(1, 11, false) + 1; }));
    MESSAGE(transports, ", seed ", seed, ": ", one.begun() + two.begun(), " dispatches, ",
            pair.events_one.count(2, 22, false), " and ", pair.events_two.count(1, 11, false), " times down, ",
            pair.one->counters().malformed + pair.two->counters().malformed, " malformed");
    pair.one.reset();
    pair.two.reset();
  }
}

TEST_CASE("connections cut at 200 random moments lose no dispatch that is resent, no credit and no memory") {
  cut_and_check("posix,cma,tcp", 1);
  cut_and_check("tcp", 2);
}

TEST_CASE("connections cut at random moments, twenty seeds" * doctest::test_suite("full")) {
  for (uint64_t seed = 10; seed < 20; ++seed) {
    cut_and_check("posix,cma,tcp", seed);
    cut_and_check("tcp", seed + 100);
  }
}

TEST_CASE("a connection that one side cuts is made anew by the other, and what is sent meanwhile arrives") {
  for (const char* transports : {"posix,cma,tcp", "tcp"}) {
    CAPTURE(transports);
    pair_of_wires pair([&](ucx_wire_options& options) { options.transports = transports; });
    std::atomic<int> received{0};
    pair.two->attach(5, [&](const micro_batch& arrived) { received += is_patterned(arrived) ? 1 : 100; });
    pair.connect();  // by node 1
    for (size_t round = 1; round <= 5; ++round) {
      pair.two->cut(1);
      REQUIRE(eventually([&] { return pair.events_one.count(2, 22, false) == round; }));
      REQUIRE(send_patiently(*pair.one, pair.at_two, patterned(pair.pool, 3'000'000, round)));
      REQUIRE(send_patiently(*pair.one, pair.at_two, patterned(pair.pool, 100, round)));
      CHECK(eventually([&] { return received == static_cast<int>(2 * round); }));
      REQUIRE(eventually([&] { return pair.events_two.count(1, 11, true) == round + 1; }));
    }
    CHECK(pair.events_one.count(2, 22, true) == 6);
    CHECK(pair.one->counters().links == 1);
    CHECK(pair.two->counters().reconnections == 0);
  }
}

TEST_CASE("a node that is not there yet is tried until it is, and its absence is told once") {
  std::string address = wire_of(options_of(2, 22))->listen_address();
  event_log events;
  buffer_pool pool(1 << 20);
  auto options = options_of(1, 11, &events);
  options.reconnect_max_ms = 50;
  const auto one = wire_of(options);
  REQUIRE(one->connect(2, 22, address));
  REQUIRE(eventually([&] { return one->counters().reconnections >= 5; }));
  CHECK(events.count(2, 22, false) == 1);
  CHECK(one->send({2, 5, 22}, patterned(pool, 1000, 1)));  // waits, and goes with the next failure
  CHECK(eventually([&] { return pool.bytes_in_use() == 0; }));
  auto late = options_of(2, 22);
  late.listen = address;
  const auto two = wire_of(late);
  CHECK(eventually([&] { return events.count(2, 22, true) == 1; }));
  CHECK(one->counters().links == 1);
}

TEST_CASE("attempts end with disconnect, with refuse and when the peer leaves") {
  for (const int how : {0, 1, 2}) {
    CAPTURE(how);
    pair_of_wires pair;
    pair.connect();
    if (how == 0) {
      pair.two.reset();
    } else {
      pair.one->cut(2);
      how == 1 ? pair.one->disconnect(2) : pair.one->refuse(2, 22);
    }
    REQUIRE(eventually([&] { return pair.events_one.count(2, 22, false) == 1; }));
    REQUIRE(eventually([&] { return pair.one->counters().links == 0; }));
    std::this_thread::sleep_for(50ms);
    CHECK(pair.one->counters().reconnections == 0);
    CHECK(pair.events_one.count(2, 22, false) == 1);
    CHECK(pair.one->send(pair.at_two, patterned(pair.pool, 10, 1)).failure().code == errc::unavailable);
  }
}

TEST_CASE("a refusal ends the attempts, with a sentence that says where and what to do") {
  const captured_log log;
  event_log events;
  const auto node = wire_of(options_of(1, 1, &events));
  const auto other = wire_of(options_of(2, 5));
  auto foreign_options = options_of(3, 5);
  foreign_options.cluster_key = 99;
  const auto foreign = wire_of(foreign_options);
  other->refuse(1, 1);
  struct attempt {
    uint16_t to;
    uint32_t incarnation;
    std::string address;
    std::string sentence;
  };
  for (const auto& one : std::vector<attempt>{
           {9, 1, other->listen_address(), "the address belongs to another node; check the address"},
           {2, 6, other->listen_address(), "incarnation of the node; the node has restarted"},
           {3, 5, foreign->listen_address(), "it belongs to another cluster; give all nodes of a cluster"},
       }) {
    CAPTURE(one.to);
    REQUIRE(node->connect(one.to, one.incarnation, one.address));
    REQUIRE(eventually([&] { return events.count(one.to, one.incarnation, false) == 1; }));
    CHECK(eventually([&] { return node->counters().links == 0; }));
    const std::string who = "node 1 cannot connect to node " + std::to_string(one.to) + " incarnation " +
                            std::to_string(one.incarnation) + " at " + one.address + ": ";
    CHECK_MESSAGE(log.has(who), log.text());
    CHECK_MESSAGE(log.has(one.sentence), log.text());
  }
  // Given up by the other side.
  event_log stale_events;
  const auto stale = wire_of(options_of(1, 1, &stale_events));
  REQUIRE(stale->connect(2, 5, other->listen_address()));
  REQUIRE(eventually([&] { return stale_events.count(2, 5, false) == 1; }));
  CHECK_MESSAGE(log.has("this node must join again as a new incarnation"), log.text());
  CHECK(node->counters().reconnections + stale->counters().reconnections == 0);
}

}  // namespace
}  // namespace troupe
