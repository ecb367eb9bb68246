// Experts that move while they serve, in virtual time: no step waits for a move, and no token changes.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "tests/simulation/rebalance/moving_experts.hpp"

namespace troupe::testing {

namespace {

// How long steps took: from a micro-batch's first dispatch of one step to its first of the next.
struct step_times {
  std::map<std::tuple<uint16_t, uint16_t, uint32_t>, std::pair<uint64_t, uint64_t>> last;  // step, and its time
  std::vector<uint64_t> ns;

  void observe(simulated_cluster& cluster) {
    cluster.network().observe([this, &cluster](const micro_batch_header& header, const endpoint&) {
      if (header.kind != message_kind::dispatch) return;
      auto& [step, at] = last[{header.source_node, header.source_slot, header.micro_batch}];
      const uint64_t now = virtual_ns(cluster.scheduler().time().now());
      if (step == header.step) return;
      if (step != 0) ns.push_back(now - at);
      step = header.step;
      at = now;
    });
  }
};

// Runs 16 sequences that decode all the time for 700 ms; every stage takes the same time wherever experts are.
step_times decode_steadily(const placement_policy& policy, uint64_t& moves) {
  auto options = moving_options(4);
  options.policy = policy;
  options.device.stages.emplace();
  options.device.stages->fill({microseconds(50), nanoseconds(0), nanoseconds(0)});
  options.settings.kv_blocks = 512;
  options.settings.rebalance.staging_replicas = 16;
  simulated_cluster cluster(t1_model(), options);
  REQUIRE(cluster.start());
  for (uint32_t i = 0; i < 16; ++i) {
    auto request = mixed_request(i, 2000);
    request.ignore_eos = true;
    cluster.submit(request);
  }
  cluster.run_for(milliseconds(100));  // past the prompts
  step_times times;
  times.observe(cluster);
  cluster.run_for(milliseconds(700));
  CHECK(std::none_of(cluster.streams().begin(), cluster.streams().end(), [](const auto& one) { return one->ended; }));
  CHECK(sum_of(cluster, &node_counters::dispatches_resent) == 0);
  CHECK(sum_of(cluster, &node_counters::dispatches_refused) == 0);
  moves = cluster.board().rebalance.moves_done;
  return times;
}

}  // namespace

TEST_CASE("constant load: no step takes longer while hundreds of experts move than without") {
  uint64_t none = 0;
  uint64_t moves = 0;
  auto still = decode_steadily({}, none);
  auto moving = decode_steadily(shuffling_policy(), moves);
  const uint64_t longest_still = *std::max_element(still.ns.begin(), still.ns.end());
  const uint64_t longest_moving = *std::max_element(moving.ns.begin(), moving.ns.end());
  MESSAGE(moves << " moves; longest of " << moving.ns.size() << " steps " << longest_moving << " ns, without moves "
                << longest_still << " ns");
  CHECK(none == 0);
  CHECK(moves >= 200);
  // A dispatch waits for one piece of weights on its link at most, at each of two layers, there and back.
  const uint64_t piece_ns = 700;
  CHECK(longest_moving <= longest_still + 4 * piece_ns);
  CHECK(moving.ns.size() * 1000 >= still.ns.size() * 995);
}

TEST_CASE("drifting hot experts: hundreds of moves change no token, and nothing is left behind") {
  auto options = moving_options(4);
  options.settings.rebalance.policy = "eplb_distinct";
  options.settings.selection = replica_selection::weighted;
  simulated_cluster cluster(t1_model(), options);
  REQUIRE(cluster.start());
  const uint64_t replicas_max = moe_layers * slots + options.settings.rebalance.staging_replicas;
  drifting_load load{cluster};
  for (uint32_t i = 0; i < 80; ++i) {
    load.keep_up(i / 10);
    cluster.run_for(milliseconds(10));
    for (uint16_t node = 0; node < 4; ++node) REQUIRE(cluster.replicas_at(node) <= replicas_max);
  }
  REQUIRE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(60)));
  load.check_streams();
  check_at_rest(cluster);
  const auto done = cluster.board().rebalance;
  MESSAGE(done.moves_done << " moves in " << done.plans << " plans, epoch " << cluster.board().epoch << ", "
                          << cluster.streams().size() << " streams");
  CHECK(done.moves_done >= 100);
  CHECK(done.moves_failed == 0);
  CHECK(sum_of(cluster, &node_counters::dispatches_resent) == 0);
  CHECK(sum_of(cluster, &node_counters::dispatches_refused) == 0);
}

TEST_CASE("an imbalance above its threshold is enough to move experts to the load, which levels the nodes") {
  const auto imbalance = [](const std::string& policy) {
    auto options = moving_options(4);
    options.settings.rebalance.policy = policy;
    options.settings.rebalance.period_ms = 0;
    options.settings.rebalance.imbalance = 1.15;
    options.settings.selection = replica_selection::weighted;
    simulated_cluster cluster(t1_model(), options);
    REQUIRE(cluster.start());
    drifting_load load{cluster};
    for (uint32_t i = 0; i < 50; ++i) {
      load.keep_up(0);
      cluster.run_for(milliseconds(10));
    }
    return cluster.board().rebalance.imbalance;
  };
  const double before = imbalance("none");
  const double after = imbalance("incremental");
  MESSAGE("fullest node over the mean: " << before << " without, " << after << " with rebalancing");
  CHECK(before > 1.3);
  CHECK(after < 1.2);
}

}  // namespace troupe::testing
