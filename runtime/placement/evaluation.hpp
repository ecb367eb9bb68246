// Policies judged offline: a load through time, each plan made from the past and judged on what came next.
//
// Pure but for what the policies do and for the clock that is passed in. One thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/placement/policy.hpp"
#include "runtime/placement/replica_selection.hpp"

namespace troupe {

struct evaluation_settings {
  uint32_t history = 8;  // windows that a policy sees, the newest of them included
  replica_selection selection = replica_selection::even;
  placement_limits limits;
  placement_liveness liveness;
  std::function<double()> seconds;  // a clock; none: solve times are 0
  std::vector<double> bounds;       // by judging window, as `window_bounds` gives them; empty: worked out anew
};

// The bound on the mean balance of each window of a load, for all policies the same.
std::vector<double> window_bounds(const load_history& load, const placement_topology& topology,
                                  const evaluation_settings& settings);

// One plan, and the window that judged it.
struct judged_plan {
  double balance_mean = 0;   // over layers, of device rows
  double balance_worst = 0;  // the worst layer's
  double node_worst = 0;     // rows of the fullest node of a layer over the mean node's, in the worst layer
  double crossing_rows = 0;  // that leave their node, of one token in one layer
  double bound = 0;          // of balance_mean, for whoever knew the window
  double solve_seconds = 0;
  uint64_t wasted_slots = 0;
  uint64_t move_bytes = 0;
  uint64_t moves = 0;
  double move_seconds = 0;  // that the moves take at least, at the topology's bandwidth
  std::string reason;
  std::string failure;  // empty when the plan was followed; else the one before stayed in force
};

struct evaluation {
  std::string policy;
  std::vector<judged_plan> plans;  // plan t is made from windows up to t and judged on window t + 1
  expert_map last;
  std::vector<double> rows_before;  // [layers, devices] of the last window under the map at the start
  std::vector<double> rows_after;   // and under the last map
};

// What a table shows: means over plans. Bytes are those of the plans after the first, which builds the map.
struct evaluation_summary {
  judged_plan mean;
  double move_bytes = 0;
  uint64_t first_move_bytes = 0;
  double solve_seconds_max = 0;
  double balance_worst = 1;  // of all plans
  double node_worst = 0;
  uint32_t failures = 0;
  std::string first_failure;
};

// Starts from the `linear` map. A load of one window is judged on itself. Fails: invalid_argument when load,
// topology and limits do not fit together; a policy that fails is noted in its plans.
result<evaluation> evaluate(const std::string& name, const placement_policy& policy, const load_history& load,
                            const placement_topology& topology, const evaluation_settings& settings);

evaluation_summary summarise(const evaluation& judged);

}  // namespace troupe
