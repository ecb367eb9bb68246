// What the tests of moving experts share: clusters that move them often, and what must hold when all is quiet.
#pragma once

#include <doctest/doctest.h>

#include <memory>

#include "runtime/placement/random.hpp"
#include "tests/simulation/simulation_fixtures.hpp"

namespace troupe::testing {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr uint32_t moe_layers = 2;  // of T1
constexpr uint32_t experts = 16;
constexpr uint32_t slots = 8;  // of a layer at each of four nodes, with one redundant replica of each expert

inline simulation_options moving_options(uint32_t nodes) {
  auto options = t1_options(nodes);
  options.settings.heartbeat_ms = 10;
  options.settings.verdict_ms = 100;
  options.settings.schedule = taking_turns(2);
  options.settings.rebalance.window_ms = 100;
  options.settings.rebalance.period_ms = 100;
  options.settings.rebalance.move_timeout_ms = 1000;
  return options;
}

inline uint64_t sum_of(const simulated_cluster& cluster, uint64_t node_counters::*field) {
  uint64_t sum = 0;
  for (const auto& node : cluster.board().nodes) sum += node.counters.*field;
  return sum;
}

// Another map for each question, whatever the load: each expert on two live devices.
inline placement_policy shuffling_policy() {
  return [asked = std::make_shared<uint32_t>(0)](const placement_input& input) -> result<placement_proposal> {
    const uint32_t turn = ++*asked;
    std::vector<uint16_t> live;
    for (uint16_t device = 0; device < input.topology.devices.size(); ++device)
      if (input.liveness(device)) live.push_back(device);
    const auto count = static_cast<uint32_t>(live.size());
    expert_map map{input.load.layers, input.load.experts, {0}, {}};
    for (uint32_t i = 0; i < map.layers * map.experts; ++i) {
      const uint32_t first = (i + turn) % count;
      map.devices.push_back(live[first]);
      if (count > 1) map.devices.push_back(live[(first + 1 + turn % (count - 1)) % count]);
      map.offsets.push_back(static_cast<uint32_t>(map.devices.size()));
    }
    return placement_proposal{std::move(map), "shuffled"};
  };
}

// Waits until no move is under way, then compares what the table says with what the nodes hold.
inline void check_at_rest(simulated_cluster& cluster) {
  const auto at_rest = [&] {
    const auto board = cluster.board();
    if (board.rebalance.moves_left > 0 || board.rebalance.asking || !board.placement) return false;
    uint64_t held = 0;
    for (const auto& node : board.nodes) held += node.counters.replicas;
    return held == board.placement->nodes.size();
  };
  REQUIRE(cluster.run_until(at_rest, seconds(30)));
  cluster.run_for(milliseconds(300));
  REQUIRE(at_rest());
  const auto board = cluster.board();
  const auto& table = *board.placement;
  std::map<uint16_t, uint64_t> named;
  for (uint32_t layer = 0; layer < table.layers; ++layer)
    for (uint32_t expert = 0; expert < table.experts; ++expert) {
      auto nodes = std::vector<uint16_t>(table.replicas(layer, expert).begin(), table.replicas(layer, expert).end());
      CHECK(nodes.empty() == (layer == 0));  // T1's first layer is dense
      std::sort(nodes.begin(), nodes.end());
      CHECK(std::adjacent_find(nodes.begin(), nodes.end()) == nodes.end());
      for (const uint16_t node : nodes) ++named[node];
    }
  uint64_t bytes_each = 0;
  for (const auto& node : board.nodes) {
    CAPTURE(node.node);
    CHECK(node.counters.replicas == named[node.node]);
    if (node.counters.replicas == 0) continue;
    if (bytes_each == 0) bytes_each = node.counters.replica_bytes / node.counters.replicas;
    CHECK(node.counters.replica_bytes == bytes_each * node.counters.replicas);
  }
  CHECK(cluster.buffers_in_use() == 0);
  CHECK(sum_of(cluster, &node_counters::sequences) == 0);
  CHECK(sum_of(cluster, &node_counters::kv_blocks_free) == sum_of(cluster, &node_counters::kv_blocks));
}

}  // namespace troupe::testing
