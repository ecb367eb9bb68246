// Peers that die, hang, restart, lie or are given up.
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/runtime/wire/fixture.hpp"

namespace troupe {
namespace {

using namespace wire_test;

// This test's node 1, whose slot 1 counts the echoes of a peer process.
struct node_with_echoes {
  buffer_pool pool{uint64_t{256} << 20U};  // outlives the wire
  event_log events;
  std::atomic<int> intact{0};
  std::atomic<int> damaged{0};
  std::unique_ptr<ucx_wire> wire;

  explicit node_with_echoes(const std::function<void(ucx_wire_options&)>& adjust = {}) {
    auto options = options_of(1, 1, &events);
    if (adjust) adjust(options);
    wire = wire_of(options);
    wire->attach(1, [this](micro_batch arrived) { is_patterned(arrived) ? ++intact : ++damaged; });
  }
  void connect(uint16_t node, uint32_t incarnation, const std::string& address) {
    const size_t before = events.count(node, incarnation, true);
    REQUIRE(wire->connect(node, incarnation, address));
    REQUIRE(eventually([&] { return events.count(node, incarnation, true) == before + 1; }));
  }
  // As much as the limits allow.
  int flood(endpoint to, uint64_t bytes) {
    const auto message = patterned(pool, bytes, 1);
    int sent = 0;
    while (sent < 100'000 && wire->send(to, message)) ++sent;
    return sent;
  }
};

// Addresses of the queues in shared memory by which this process's wires receive, as UCX 1.13 lays them out
// (`uct_mm_fifo_ctl`): the index that the next sender takes, a UNIX socket's address, and at 136 the receiver's
// process.
std::set<uintptr_t> receive_queues() {
  std::set<uintptr_t> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(" rw-s ") == std::string::npos || line.find("/dev/shm/") == std::string::npos) continue;
    const uintptr_t start = std::stoull(line, nullptr, 16);
    const auto* const bytes = reinterpret_cast<const std::byte*>(start);  // NOLINT(performance-no-int-to-ptr)
    uint16_t family = 0;
    int32_t process = 0;
    std::memcpy(&family, bytes + 12, sizeof family);
    std::memcpy(&process, bytes + 136, sizeof process);
    if (family == AF_UNIX && process == getpid()) found.insert(start);
  }
  return found;
}

// What senders leave behind that die between taking a place and filling it.
void take_places(uintptr_t queue, uint64_t count) {
  auto* const next = reinterpret_cast<uint64_t*>(queue);  // NOLINT(performance-no-int-to-ptr)
  std::atomic_ref<uint64_t>(*next).fetch_add(count);
}

TEST_CASE("a sender that dies in the middle of a message does not keep others from reaching the node") {
  const auto others = receive_queues();
  node_with_echoes node;
  std::vector<uintptr_t> own;
  for (const uintptr_t queue : receive_queues())
    if (!others.contains(queue)) own.push_back(queue);
  if (own.size() != 1) {
    MESSAGE("skipped: this UCX lays out its queues in shared memory in another way");
    return;
  }
  peer_process stays(3, 1);
  node.connect(3, 1, stays.address());
  uint32_t echoed = 0;
  const std::string address = node.wire->listen_address();
  constexpr uint64_t all_places = 1000;  // and more: the queue is full then too
  for (uint32_t incarnation = 1; incarnation <= 3; ++incarnation) {
    CAPTURE(incarnation);
    peer_process dies(2, incarnation);
    node.connect(2, incarnation, dies.address());
    const auto queues = receive_queues();
    for (const uintptr_t queue : queues)
      if (!others.contains(queue)) take_places(queue, incarnation == 3 ? all_places : 1);
    // On its way, and to be sent again or dropped, when the connections go.
    for (const uint64_t bytes : {100, 60'000, 3'000'000})
      REQUIRE(node.wire->send({3, 1, 1}, patterned(node.pool, bytes, bytes)));
    dies.end();
    REQUIRE(eventually([&] { return node.wire->counters().receive_queues_blocked == incarnation; }));
    REQUIRE(eventually([&] { return node.events.count(3, 1, true) == incarnation + 1; }));
    CHECK(node.events.count(3, 1, false) == incarnation);
    CHECK(node.wire->listen_address() == address);
    CHECK(eventually([&] { return node.wire->statistics().bytes_in_flight == 0; }));
    node.intact = 0;
    for (const uint64_t bytes : {100, 60'000, 3'000'000})
      REQUIRE(send_patiently(*node.wire, {3, 1, 1}, patterned(node.pool, bytes, ++echoed)));
    CHECK(eventually([&] { return node.intact == 3; }));
  }
  CHECK(node.damaged == 0);
  CHECK(node.wire->counters().peers_up == 1);
}

TEST_CASE("a peer process echoes what it is sent") {
  for (const char* transports : {"posix,cma,tcp", "tcp"}) {
    CAPTURE(transports);
    peer_process peer(2, 1, transports);
    node_with_echoes node([&](ucx_wire_options& options) { options.transports = transports; });
    node.connect(2, 1, peer.address());
    for (const uint64_t bytes : {0, 100, 5000, 60'000, 100'000, 3'000'000})
      CHECK(send_patiently(*node.wire, {2, 1, 1}, patterned(node.pool, bytes, bytes)));
    CHECK(eventually([&] { return node.intact == 6; }));
    CHECK(node.damaged == 0);
  }
}

TEST_CASE("a killed peer is reported down and releases what was on its way to it") {
  for (const char* transports : {"posix,cma,tcp", "tcp"}) {
    CAPTURE(transports);
    peer_process peer(2, 1, transports);
    node_with_echoes node([&](ucx_wire_options& options) { options.transports = transports; });
    node.connect(2, 1, peer.address());
    peer.stop();
    for (const uint64_t bytes : {uint64_t{1000}, uint64_t{1} << 20U}) node.flood({2, 2, 1}, bytes);
    CHECK(node.wire->statistics().bytes_in_flight > 0);
    peer.end();
    CHECK(eventually([&] { return node.events.count(2, 1, false) == 1; }, 20s));
    CHECK(eventually([&] { return node.pool.bytes_in_use() == 0; }, 20s));
    CHECK(node.wire->statistics().bytes_in_flight == 0);
    CHECK(node.wire->send({2, 2, 1}, {}).failure().code != errc::exhausted);
    MESSAGE(node.events.last_reason());
  }
}

TEST_CASE("a hung peer hangs neither the progress thread nor closing") {
  for (const char* transports : {"posix,cma,tcp", "tcp"}) {
    CAPTURE(transports);
    peer_process hung(2, 1, transports);
    peer_process healthy(3, 1, transports);
    {
      node_with_echoes node([&](ucx_wire_options& options) { options.transports = transports; });
      node.connect(2, 1, hung.address());
      node.connect(3, 1, healthy.address());
      hung.stop();
      for (const uint64_t bytes : {uint64_t{1000}, uint64_t{30'000}, uint64_t{1} << 20U}) node.flood({2, 2, 1}, bytes);
      for (int i = 0; i < 20; ++i) REQUIRE(send_patiently(*node.wire, {3, 1, 1}, patterned(node.pool, 100'000, 5)));
      CHECK_MESSAGE(eventually([&] { return node.intact == 20; }), node.intact.load(), " of 20, ",
                    describe(*node.wire));
      const auto began = std::chrono::steady_clock::now();
      node.wire.reset();
      CHECK(std::chrono::steady_clock::now() - began < 15s);
      CHECK(node.pool.bytes_in_use() == 0);
    }
    hung.go_on();
  }
}

TEST_CASE("a hung peer can be disconnected, and its messages' memory returns after the quarantine") {
  peer_process hung(2, 1);
  node_with_echoes node([](ucx_wire_options& options) { options.quarantine_ms = 300; });
  node.connect(2, 1, hung.address());
  hung.stop();
  CHECK(node.flood({2, 2, 1}, uint64_t{1} << 20U) > 0);
  node.wire->disconnect(2);
  CHECK(eventually([&] { return node.events.count(2, 1, false) == 1; }));
  CHECK(node.wire->statistics().bytes_in_flight == 0);
  CHECK(eventually([&] { return node.pool.bytes_in_use() == 0; }));
  // It wakes up, finds itself disconnected, and is met again.
  hung.go_on();
  node.connect(2, 1, hung.address());
  const int before = node.intact;
  CHECK(send_patiently(*node.wire, {2, 1, 1}, patterned(node.pool, 200'000, 9)));
  CHECK(eventually([&] { return node.intact > before; }));
  CHECK(node.damaged == 0);
}

TEST_CASE("a silent peer is dropped when a silence limit is set, and an idle one is not") {
  peer_process hung(2, 1);
  peer_process idle(3, 1);
  // The idle peer answers no pings of its own accord: it hears ours and sends none, so it counts as
  // silent too unless it pings; both sides need the limit. This node pings itself through node 4.
  event_log other_events;
  auto other_options = options_of(4, 1, &other_events);
  other_options.silence_max_ms = 1500;
  const auto other = wire_of(other_options);
  node_with_echoes node([](ucx_wire_options& options) { options.silence_max_ms = 1500; });
  node.connect(4, 1, other->listen_address());
  node.connect(2, 1, hung.address());
  hung.stop();
  CHECK(eventually([&] { return node.events.count(2, 1, false) == 1; }));
  CHECK(node.events.count(4, 1, false) == 0);
  CHECK(other_events.count(1, 1, false) == 0);
}

TEST_CASE("a restarted peer is met as a new incarnation and its old one is refused") {
  event_log events;
  auto node = wire_of(options_of(1, 1, &events));
  buffer_pool pool(1 << 20);
  auto old_peer = wire_of(options_of(2, 7));
  REQUIRE(old_peer->connect(1, 1, node->listen_address()));
  REQUIRE(eventually([&] { return events.count(2, 7, true) == 1; }));

  // The new incarnation connects while the old one still seems to be there.
  event_log new_events;
  std::atomic<int> received{0};
  auto new_peer = wire_of(options_of(2, 8, &new_events));
  new_peer->attach(5, [&](micro_batch) { ++received; });
  REQUIRE(new_peer->connect(1, 1, node->listen_address()));
  REQUIRE(eventually([&] { return events.count(2, 8, true) == 1; }));
  CHECK(events.count(2, 7, false) == 1);
  CHECK(node->send({2, 5, 7}, patterned(pool, 10, 1)).failure().code == errc::unavailable);
  CHECK(node->send({2, 5, 8}, patterned(pool, 10, 1)));
  CHECK(eventually([&] { return received == 1; }));

  // The old one tries again.
  event_log stale_events;
  auto stale_options = options_of(2, 7, &stale_events);
  auto stale = wire_of(stale_options);
  REQUIRE(stale->connect(1, 1, node->listen_address()));
  CHECK(eventually([&] { return stale_events.count(1, 1, false) == 1; }));
  CHECK(node->counters().refused_greetings >= 1);
  CHECK(events.count(2, 7, true) == 1);
  CHECK(events.count(2, 8, false) == 0);
  MESSAGE(stale_events.last_reason());

  // And this node refuses to connect to it.
  REQUIRE(node->connect(2, 7, stale->listen_address()));
  CHECK(eventually([&] { return events.count(2, 7, false) == 2; }));
  CHECK(node->send({2, 5, 8}, patterned(pool, 10, 1)));
  CHECK(eventually([&] { return received == 2; }));
}

TEST_CASE("a killed peer that restarts is reconnected to as its new incarnation") {
  node_with_echoes node;
  {
    peer_process peer(2, 1);
    node.connect(2, 1, peer.address());
  }
  peer_process restarted(2, 2);
  node.connect(2, 2, restarted.address());
  CHECK(eventually([&] { return node.events.count(2, 1, false) == 1; }));
  CHECK(send_patiently(*node.wire, {2, 1, 2}, patterned(node.pool, 1 << 20, 4)));
  CHECK(eventually([&] { return node.intact == 1; }));
}

TEST_CASE("a peer that leaves or disconnects is reported down and may come back") {
  event_log events_one;
  event_log events_two;
  auto one = wire_of(options_of(1, 1, &events_one));
  auto two = wire_of(options_of(2, 1, &events_two));
  for (size_t round = 1; round <= 5; ++round) {
    REQUIRE(two->connect(1, 1, one->listen_address()));
    REQUIRE(eventually([&] { return events_one.count(2, 1, true) == round && events_two.count(1, 1, true) == round; }));
    one->disconnect(2);
    REQUIRE(
        eventually([&] { return events_one.count(2, 1, false) == round && events_two.count(1, 1, false) == round; }));
  }
  REQUIRE(two->connect(1, 1, one->listen_address()));
  REQUIRE(eventually([&] { return events_one.count(2, 1, true) == 6; }));
  two.reset();
  CHECK(eventually([&] { return events_one.count(2, 1, false) == 6; }));
  CHECK(events_one.last_reason() == "it left");
}

TEST_CASE("an incarnation that was given up cannot connect again, a later one can") {
  event_log events;
  auto node = wire_of(options_of(1, 1, &events));
  event_log peer_events;
  auto peer = wire_of(options_of(2, 3, &peer_events));
  REQUIRE(peer->connect(1, 1, node->listen_address()));
  REQUIRE(eventually([&] { return peer_events.count(1, 1, true) == 1; }));
  node->refuse(2, 3);
  REQUIRE(eventually([&] { return peer_events.count(1, 1, false) == 1; }));
  REQUIRE(peer->connect(1, 1, node->listen_address()));
  REQUIRE(eventually([&] { return peer_events.count(1, 1, false) == 2; }));
  peer.reset();
  peer = wire_of(options_of(2, 4));
  REQUIRE(peer->connect(1, 1, node->listen_address()));
  CHECK(eventually([&] { return events.count(2, 4, true) == 1; }));
}

TEST_CASE("connecting to the wrong node, incarnation, cluster or port ends with a reason and frees what waits") {
  node_with_echoes node;
  auto other_options = options_of(2, 5);
  const auto other = wire_of(other_options);
  auto foreign_options = options_of(3, 5);
  foreign_options.cluster_key = 99;
  const auto foreign = wire_of(foreign_options);
  struct attempt {
    uint16_t to;
    uint32_t incarnation;
    std::string address;
    const char* reason;
  };
  for (const auto& one : std::vector<attempt>{{9, 1, other->listen_address(), "another node"},
                                              {2, 6, other->listen_address(), "another incarnation"},
                                              {3, 5, foreign->listen_address(), "another cluster"},
                                              {4, 1, "127.0.0.1:1", ""}}) {
    CAPTURE(one.to);
    REQUIRE(node.wire->connect(one.to, one.incarnation, one.address));
    (void)node.wire->send({one.to, 1, one.incarnation}, patterned(node.pool, 1 << 20, 1));
    CHECK(eventually([&] { return node.events.count(one.to, one.incarnation, false) == 1; }));
    const std::string reason = node.events.last_reason();
    CHECK_MESSAGE(reason.find(one.reason) != std::string::npos, reason);
    CHECK(eventually([&] { return node.pool.bytes_in_use() == 0; }));
  }
  CHECK(node.wire->statistics().bytes_in_flight == 0);
}

TEST_CASE("a peer that never completes the handshake is given up after its deadline") {
  peer_process hung(2, 1);
  hung.stop();
  node_with_echoes node([](ucx_wire_options& options) { options.handshake_timeout_ms = 300; });
  REQUIRE(node.wire->connect(2, 1, hung.address()));
  REQUIRE(node.wire->send({2, 1, 1}, patterned(node.pool, 1 << 20, 1)));
  CHECK(eventually([&] { return node.events.count(2, 1, false) == 1; }));
  CHECK(eventually([&] { return node.pool.bytes_in_use() == 0; }));
}

TEST_CASE("peers that come and go while others are sent to disturb nobody") {
  peer_process steady(2, 1);
  node_with_echoes node;
  node.connect(2, 1, steady.address());
  int sent = 0;
  for (uint32_t incarnation = 1; incarnation <= 4; ++incarnation) {
    peer_process passing(3, incarnation);
    REQUIRE(node.wire->connect(3, incarnation, passing.address()));
    for (int i = 0; i < 50; ++i) {
      REQUIRE(send_patiently(*node.wire, {2, 1, 1}, patterned(node.pool, static_cast<uint64_t>(i) * 3000, 1)));
      ++sent;
      (void)node.wire->send({3, 2, incarnation}, patterned(node.pool, 200'000, 2));
    }
  }
  CHECK(eventually([&] { return node.intact == sent; }));
  CHECK(node.damaged == 0);
  CHECK(eventually([&] { return node.pool.bytes_in_use() == 0; }));
}

}  // namespace
}  // namespace troupe
