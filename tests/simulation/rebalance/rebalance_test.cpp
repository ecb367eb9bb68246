// Experts that move while they serve, in virtual time: no step waits for a move, and no token changes.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "runtime/placement/policy_registry.hpp"
#include "tests/simulation/simulation_fixtures.hpp"

namespace troupe::testing {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

namespace {

constexpr uint32_t moe_layers = 2;
constexpr uint32_t experts = 16;

simulation_options moving_options(uint32_t nodes, const std::string& policy) {
  auto options = t1_options(nodes);
  auto& rebalance = options.settings.rebalance;
  options.settings.heartbeat_ms = 10;
  options.settings.schedule = taking_turns(2);
  rebalance.policy = policy;
  rebalance.window_ms = 200;
  rebalance.period_ms = 200;
  rebalance.move_timeout_ms = 1000;
  return options;
}

// What every stage takes wherever experts are, so that placement cannot change how long a step computes.
std::array<stage_cost, stage_kind_count> even_costs() {
  std::array<stage_cost, stage_kind_count> costs;
  costs.fill({microseconds(50), nanoseconds(0), nanoseconds(0)});
  return costs;
}

uint64_t sum_of(const simulated_cluster& cluster, uint64_t node_counters::*field) {
  uint64_t sum = 0;
  for (const auto& node : cluster.board().nodes) sum += node.counters.*field;
  return sum;
}

// Keeps `streams` requests running for `duration`; those of one period share a few token ids, so that
// their experts are hot, and the next period has others.
struct drifting_load {
  simulated_cluster& cluster;
  uint32_t streams;
  std::vector<size_t> running;
  std::vector<uint32_t> kinds;  // of each stream submitted
  uint32_t next = 0;

  void keep_up(uint32_t drift) {
    std::erase_if(running, [&](size_t stream) { return cluster.streams()[stream]->ended; });
    while (running.size() < streams) {
      const uint32_t kind = drift % 4 * 16 + next++ % 16;
      running.push_back(cluster.streams().size());
      kinds.push_back(kind);
      cluster.submit(hot_request(kind));
    }
  }

  static generation_request hot_request(uint32_t kind) {
    auto request = mixed_request(kind, 40);
    request.ignore_eos = true;
    for (auto& token : request.prompt_ids) token = static_cast<int32_t>(2 + (kind / 16) * 16 + token % 2);
    return request;
  }
};

}  // namespace

TEST_CASE("hundreds of moves under a drifting load of hot experts: no step waits, and no token changes") {
  auto options = moving_options(4, "eplb_distinct");
  options.settings.selection = replica_selection::weighted;
  options.device.stages = even_costs();
  simulated_cluster cluster(t1_model(), options);
  REQUIRE(cluster.start());
  drifting_load load{cluster, 24, {}, {}};
  for (int i = 0; i < 300; ++i) {
    load.keep_up(static_cast<uint32_t>(i / 20));
    cluster.run_for(milliseconds(10));
  }
  const auto done = cluster.board().rebalance;
  MESSAGE(done.moves_done << " moves, " << done.moves_failed << " failed, " << done.moves_superseded << " superseded, "
                          << done.plans << " plans, " << done.plans_refused << " refused: " << done.last_failure << "; "
                          << cluster.streams().size() << " streams, epoch " << cluster.board().epoch << " imbalance " << done.imbalance
                          << " before " << done.balance_before << " after " << done.balance_after
                          << " resent " << sum_of(cluster, &node_counters::dispatches_resent)
                          << " refused " << sum_of(cluster, &node_counters::dispatches_refused)
                          << " steps " << sum_of(cluster, &node_counters::steps));
}

}  // namespace troupe::testing
