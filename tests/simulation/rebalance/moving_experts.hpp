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

// Keeps `streams` requests running, whose prompts have few tokens so that their experts are hot; which, drifts.
struct drifting_load {
  static constexpr uint32_t kinds = 64;

  simulated_cluster& cluster;
  uint32_t streams = 24;
  uint32_t tokens = 40;  // of each
  std::vector<size_t> running{};
  std::vector<uint32_t> kind_of{};  // each stream's

  static generation_request hot_request(uint32_t kind, uint32_t max_tokens) {
    auto request = mixed_request(kind, max_tokens);
    request.ignore_eos = true;
    for (auto& token : request.prompt_ids)
      token = static_cast<int32_t>(2 + kind / 16 * 16 + static_cast<uint32_t>(token) % 2);
    return request;
  }

  void keep_up(uint32_t drift) {
    std::erase_if(running, [&](size_t stream) { return cluster.streams()[stream]->ended; });
    while (running.size() < streams) {
      const auto number = static_cast<uint32_t>(cluster.streams().size());
      const uint32_t kind = drift % 4 * 16 + number % 16;
      running.push_back(number);
      kind_of.push_back(kind);
      cluster.submit(hot_request(kind, tokens));
    }
  }

  // Each kind alone on one node, without replicas to choose from and without moves.
  static const std::vector<stream_result>& undisturbed(uint32_t max_tokens) {
    static std::map<uint32_t, std::vector<stream_result>> known;
    auto& streams_alone = known[max_tokens];
    if (!streams_alone.empty()) return streams_alone;
    simulated_cluster alone(t1_model(), t1_options(1));
    alone.start();
    for (uint32_t kind = 0; kind < kinds; ++kind) alone.submit(hot_request(kind, max_tokens));
    alone.run_until([&] { return alone.all_ended(); }, seconds(60));
    for (const auto& stream : alone.streams()) streams_alone.push_back(result_of(*stream));
    return streams_alone;
  }

  void check_streams() const {
    for (size_t i = 0; i < cluster.streams().size(); ++i) {
      CAPTURE(i);
      REQUIRE(!cluster.streams()[i]->failure);
      REQUIRE(result_of(*cluster.streams()[i]) == undisturbed(tokens)[kind_of[i]]);
    }
  }
};

// Waits until no move is under way, then compares what the table says with what the nodes hold. The mailboxes of a
// process that crashed are never emptied, and keep buffers of others.
inline void check_at_rest(simulated_cluster& cluster, bool crashed = false) {
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
  if (!crashed) CHECK(cluster.buffers_in_use() == 0);
  CHECK(sum_of(cluster, &node_counters::sequences) == 0);
  CHECK(sum_of(cluster, &node_counters::kv_blocks_free) == sum_of(cluster, &node_counters::kv_blocks));
}

}  // namespace troupe::testing
