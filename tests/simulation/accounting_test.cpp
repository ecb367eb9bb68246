// What a step costs in messages, weight passes and allocations, counted exactly in virtual time.
#include <doctest/doctest.h>

#include <map>
#include <set>
#include <tuple>

#include "tests/simulation/counted_allocations.hpp"
#include "tests/simulation/simulation_fixtures.hpp"

namespace troupe::testing {

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr uint32_t moe_layers = 2;
constexpr uint32_t experts = 16;

generation_request long_decode(uint32_t i) {
  auto request = mixed_request(i, 400);
  request.ignore_eos = true;
  request.prompt_ids.resize(4, 9);
  return request;
}

// A cluster with `sequences` decoding, past its prefills.
void saturate(simulated_cluster& cluster, uint32_t sequences) {
  REQUIRE(cluster.start());
  for (uint32_t i = 0; i < sequences; ++i) cluster.submit(long_decode(i));
  REQUIRE(cluster.run_until(
      [&] {
        for (const auto& stream : cluster.streams())
          if (stream->tokens.size() < 10) return false;
        return true;
      },
      seconds(60)));
}

struct passes {
  double per_expert_and_step = 0;
  uint64_t steps = 0;
};

// How often a replica's weights are read for each step: grouped launches count one for each expert that
// has rows; a step is one micro-batch's way through one layer on every shard. A perfect gather gives 1.
passes measure_passes(uint32_t nodes, uint32_t shards_per_node, uint32_t micro_batches) {
  auto options = t1_options(nodes);
  options.settings.shards_per_node = shards_per_node;
  options.settings.schedule = taking_turns(micro_batches);
  options.settings.redundant_replicas = 0;  // so that each expert has one place where it is read
  options.settings.kv_blocks = 1024;
  // Saturation: stages take far longer than a message's way.
  options.device.flops_per_s = 2e9;
  options.device.bytes_per_s = 1.5e9;
  std::set<std::tuple<uint16_t, uint16_t, uint64_t, uint32_t>> shard_layers;
  simulated_cluster cluster(t1_model(), options);
  saturate(cluster, 256);
  cluster.network().observe([&](const micro_batch_header& header, const endpoint&) {
    if (header.kind == message_kind::dispatch)
      shard_layers.emplace(header.source_node, header.source_slot, header.step, header.layer);
  });
  const uint64_t passes_before = cluster.device_totals().weight_passes;
  cluster.run_for(milliseconds(600));
  const auto counted = static_cast<double>(cluster.device_totals().weight_passes - passes_before);
  REQUIRE(!cluster.all_ended());
  const auto rounds = static_cast<double>(shard_layers.size()) / (nodes * shards_per_node);
  return {counted / (rounds * experts), shard_layers.size() / moe_layers};
}

}  // namespace

TEST_CASE("four shards at saturation read an expert's weights at most 1.2 times a step") {
  struct layout {
    uint32_t nodes, shards_per_node, micro_batches;
  };
  for (const auto& l : {layout{1, 4, 1}, layout{1, 4, 2}, layout{4, 1, 2}}) {
    const auto measured = measure_passes(l.nodes, l.shards_per_node, l.micro_batches);
    MESSAGE(l.nodes << " nodes x " << l.shards_per_node << " shards, " << l.micro_batches
                    << " micro-batches: " << measured.per_expert_and_step << " passes for each expert and step over "
                    << measured.steps << " steps");
    CHECK(measured.per_expert_and_step <= 1.2);
    CHECK(measured.steps > 100);
  }
}

TEST_CASE("one dispatch and one combine travel for each micro-batch, layer and destination device") {
  auto options = t1_options(4);
  using key = std::tuple<message_kind, uint16_t, uint16_t, uint32_t, uint64_t, uint32_t, uint16_t>;
  std::map<key, int> seen;
  simulated_cluster cluster(t1_model(), options);
  cluster.network().observe([&](const micro_batch_header& header, const endpoint& to) {
    const bool dispatch = header.kind == message_kind::dispatch;
    const uint16_t shard_node = dispatch ? header.source_node : to.node;
    const uint16_t shard_slot = dispatch ? header.source_slot : to.slot;
    const uint16_t host_node = dispatch ? to.node : header.source_node;
    ++seen[{header.kind, shard_node, shard_slot, header.micro_batch, header.step, header.layer, host_node}];
  });
  REQUIRE(cluster.start());
  for (uint32_t i = 0; i < 40; ++i) cluster.submit(mixed_request(i));
  REQUIRE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(60)));
  CHECK(seen.size() > 1000);
  uint64_t dispatches = 0;
  for (const auto& [message, count] : seen) {
    REQUIRE(count == 1);
    dispatches += std::get<0>(message) == message_kind::dispatch ? 1 : 0;
  }
  CHECK(dispatches * 2 == seen.size());
}

TEST_CASE("a decode step's messages and allocations are counted and bounded") {
  auto options = t1_options(4);
  options.settings.schedule = taking_turns(1);
  options.settings.heartbeat_ms = 500;
  options.settings.verdict_ms = 60000;
  options.settings.kv_blocks = 1024;
  options.settings.rebalance.co_activation = true;  // counting costs no allocation
  uint64_t dispatches = 0;
  uint64_t messages = 0;
  simulated_cluster cluster(t1_model(), options);
  saturate(cluster, 64);
  cluster.network().observe([&](const micro_batch_header& header, const endpoint&) {
    dispatches += header.kind == message_kind::dispatch ? 1 : 0;
    ++messages;
  });
  cluster.scheduler().observe_runs(count_allocations);
  const uint64_t runs_before = cluster.scheduler().messages_run();
  const uint64_t allocations_before = allocations_counted();
  cluster.run_for(milliseconds(20));
  cluster.scheduler().observe_runs({});
  const uint64_t allocations = allocations_counted() - allocations_before;
  REQUIRE(!cluster.all_ended());
  // Every step of a shard sends to four devices in each of two MoE layers.
  const double steps = static_cast<double>(dispatches) / (4.0 * moe_layers);
  const double per_step = static_cast<double>(allocations) / steps;
  const double runs = static_cast<double>(cluster.scheduler().messages_run() - runs_before) / steps;
  MESSAGE("a shard's step of 16 rows on 4 nodes: " << static_cast<double>(messages) / steps << " micro-batches, "
                                                   << runs << " actor runs, " << per_step << " allocations");
  CHECK(steps > 50);
  // 8 dispatches and 8 combines. Each local hand-over allocates twice in CAF (message and mailbox element):
  // from the host to each of 32 (layer, expert) pairs that has rows, and from device and wire to actors.
  CHECK(static_cast<double>(messages) / steps <= 16.01);
  CHECK(runs <= 80);
  if (can_count_allocations()) CHECK(per_step <= 160);
}

}  // namespace troupe::testing
