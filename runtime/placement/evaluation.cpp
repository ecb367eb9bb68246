#include "runtime/placement/evaluation.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/placement/simple_policies.hpp"

namespace troupe {

namespace {

double worst_node(std::span<const double> device_rows, uint32_t layers, const placement_topology& topology,
                  std::span<const uint32_t> slots) {
  double worst = 1;
  std::vector<double> nodes(topology.nodes.size());
  std::vector<bool> serves(nodes.size());
  for (size_t device = 0; device < slots.size(); ++device)
    if (slots[device] > 0) serves[topology.devices[device].node] = true;
  const auto serving = static_cast<double>(std::count(serves.begin(), serves.end(), true));
  for (uint32_t layer = 0; layer < layers; ++layer) {
    std::fill(nodes.begin(), nodes.end(), 0.0);
    for (size_t device = 0; device < slots.size(); ++device)
      nodes[topology.devices[device].node] += device_rows[layer * slots.size() + device];
    const double total = std::accumulate(nodes.begin(), nodes.end(), 0.0);
    if (total > 0) worst = std::max(worst, *std::max_element(nodes.begin(), nodes.end()) * serving / total);
  }
  return worst;
}

double mean_bound(const load_history& load, const load_window& window, std::span<const uint32_t> slots,
                  row_shares shares) {
  double sum = 0;
  std::vector<double> rows(load.experts);
  for (uint32_t layer = 0; layer < load.layers; ++layer) {
    for (uint32_t expert = 0; expert < load.experts; ++expert)
      rows[expert] = static_cast<double>(window.rows[size_t{layer} * load.experts + expert]);
    sum += balance_bound(rows, slots, shares);
  }
  return sum / load.layers;
}

void judge(judged_plan& plan, const expert_map& map, std::span<const float> shares, const load_history& load,
           const load_window& window, const placement_topology& topology, const evaluation_settings& settings,
           std::span<const uint32_t> slots) {
  const auto sent = dispatch(map, load, window, topology, settings.liveness, settings.selection, shares);
  plan.balance_worst = 1;
  for (uint32_t layer = 0; layer < map.layers; ++layer) {
    const double balance = balance_of(std::span(sent.device_rows).subspan(layer * slots.size(), slots.size()), slots);
    plan.balance_mean += balance / map.layers;
    plan.balance_worst = std::min(plan.balance_worst, balance);
  }
  plan.node_worst = worst_node(sent.device_rows, map.layers, topology, slots);
  plan.crossing_rows = sent.all > 0 ? sent.crossing / sent.all * settings.limits.rows_per_token : 0;
  plan.wasted_slots = wasted_slots(map);
}

}  // namespace

std::vector<double> window_bounds(const load_history& load, const placement_topology& topology,
                                  const evaluation_settings& settings) {
  const auto slots = usable_slots({load, topology, settings.liveness, nullptr, settings.limits});
  const auto shares = settings.selection == replica_selection::even ? row_shares::even : row_shares::any;
  std::vector<double> bounds;
  bounds.reserve(load.windows.size());
  for (const auto& window : load.windows) bounds.push_back(mean_bound(load, window, slots, shares));
  return bounds;
}

result<evaluation> evaluate(const std::string& name, const placement_policy& policy, const load_history& load,
                            const placement_topology& topology, const evaluation_settings& settings) {
  if (load.windows.empty()) return error{errc::invalid_argument, "a load without windows cannot be judged"};
  const placement_input start{load, topology, settings.liveness, nullptr, settings.limits};
  auto first = place(place_in_blocks, start);
  if (!first) return first.failure();
  const auto slots = usable_slots(start);
  evaluation judged;
  judged.policy = name;
  expert_map current = first->map;
  const size_t plans = std::max<size_t>(1, load.windows.size() - 1);
  const auto bounds = settings.bounds.empty() ? window_bounds(load, topology, settings) : settings.bounds;
  for (size_t t = 0; t < plans; ++t) {
    const size_t judging = std::min(t + 1, load.windows.size() - 1);
    const auto& judge_window = load.windows[judging];
    const auto seen = windows_of(load, t + 1 - std::min<size_t>(t + 1, std::max(1U, settings.history)), t + 1);
    const placement_input input{seen, topology, settings.liveness, &current, settings.limits};
    judged_plan plan;
    double solve_start = 0;
    double solve_end = 0;
    const auto timed = [&](const placement_input& question) {
      if (settings.seconds) solve_start = settings.seconds();
      auto answer = policy(question);
      if (settings.seconds) solve_end = settings.seconds();
      return answer;
    };
    auto made = place(timed, input);
    plan.solve_seconds = solve_end - solve_start;
    if (made) {
      plan.move_bytes = made->move_bytes;
      plan.moves = made->moves.size();
      plan.move_seconds = made->move_seconds;
      plan.reason = made->reason;
      current = std::move(made->map);
    } else {
      plan.failure = made.failure().message;
    }
    std::vector<float> shares;
    if (settings.selection == replica_selection::weighted)
      shares = level_shares(current, expected_rows(seen, settings.limits.decay), slots.size());
    judge(plan, current, shares, load, judge_window, topology, settings, slots);
    plan.bound = bounds[judging];
    judged.plans.push_back(std::move(plan));
  }
  const auto& last = load.windows.back();
  judged.rows_before =
      dispatch(first->map, load, last, topology, settings.liveness, replica_selection::even, {}).device_rows;
  judged.rows_after =
      dispatch(current, load, last, topology, settings.liveness, replica_selection::even, {}).device_rows;
  judged.last = std::move(current);
  return judged;
}

evaluation_summary summarise(const evaluation& judged) {
  evaluation_summary summary;
  const auto count = static_cast<double>(judged.plans.size());
  double wasted = 0;
  for (size_t t = 0; t < judged.plans.size(); ++t) {
    const auto& plan = judged.plans[t];
    summary.mean.balance_mean += plan.balance_mean / count;
    summary.mean.balance_worst += plan.balance_worst / count;
    summary.mean.node_worst += plan.node_worst / count;
    summary.mean.crossing_rows += plan.crossing_rows / count;
    summary.mean.bound += plan.bound / count;
    summary.mean.solve_seconds += plan.solve_seconds / count;
    wasted += static_cast<double>(plan.wasted_slots) / count;
    if (t > 0) summary.move_bytes += static_cast<double>(plan.move_bytes) / (count - 1);
    summary.mean.move_seconds += plan.move_seconds / count;
    summary.solve_seconds_max = std::max(summary.solve_seconds_max, plan.solve_seconds);
    summary.balance_worst = std::min(summary.balance_worst, plan.balance_worst);
    summary.node_worst = std::max(summary.node_worst, plan.node_worst);
    if (plan.failure.empty()) continue;
    ++summary.failures;
    if (summary.first_failure.empty()) summary.first_failure = plan.failure;
  }
  summary.mean.wasted_slots = static_cast<uint64_t>(std::llround(wasted));
  summary.first_move_bytes = judged.plans.front().move_bytes;
  return summary;
}

}  // namespace troupe
