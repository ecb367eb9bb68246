#include "runtime/placement/incremental.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <queue>

#include "runtime/placement/eplb.hpp"
#include "runtime/placement/layer_state.hpp"

namespace troupe {

namespace {

float highest_load(const slot_map& slots, uint32_t layer, std::span<const float> rows, std::vector<uint32_t>& counts) {
  const uint16_t* held = slots.experts.data() + size_t{layer} * slots.slots();
  std::fill(counts.begin(), counts.end(), 0U);
  for (uint32_t slot = 0; slot < slots.slots(); ++slot)
    if (held[slot] != slot_map::no_expert) ++counts[held[slot]];
  float highest = 0;
  for (size_t device = 0; device + 1 < slots.first.size(); ++device) {
    float load = 0;
    for (uint32_t slot = slots.first[device]; slot < slots.first[device + 1]; ++slot)
      if (held[slot] != slot_map::no_expert) load += rows[held[slot]] / static_cast<float>(counts[held[slot]]);
    highest = std::max(highest, load);
  }
  return highest;
}

// The current map in the slots that are usable now; replicas without a slot are dropped.
slot_map surviving(const expert_map& current, std::span<const uint32_t> usable) {
  slot_map slots;
  slots.layers = current.layers;
  slots.first.push_back(0);
  for (const uint32_t count : usable) slots.first.push_back(slots.first.back() + count);
  slots.experts.assign(size_t{current.layers} * slots.slots(), slot_map::no_expert);
  std::vector<uint32_t> used(usable.size());
  for (uint32_t layer = 0; layer < current.layers; ++layer) {
    uint16_t* row = slots.experts.data() + size_t{layer} * slots.slots();
    std::fill(used.begin(), used.end(), 0U);
    for (uint32_t expert = 0; expert < current.experts; ++expert)
      for (const uint16_t device : current.replicas(layer, expert))
        if (used[device] < usable[device]) row[slots.first[device] + used[device]++] = static_cast<uint16_t>(expert);
  }
  return slots;
}

// Gives every expert without a replica a free slot, or that of the expert which has most replicas.
uint32_t place_missing(uint16_t* row, uint32_t slots, uint32_t experts, std::vector<uint32_t>& counts) {
  std::fill(counts.begin(), counts.end(), 0U);
  for (uint32_t slot = 0; slot < slots; ++slot)
    if (row[slot] != slot_map::no_expert) ++counts[row[slot]];
  uint32_t placed = 0;
  for (uint32_t expert = 0; expert < experts; ++expert) {
    if (counts[expert] > 0) continue;
    uint32_t best = 0;
    const auto spare = [&](uint32_t slot) {
      return row[slot] == slot_map::no_expert ? std::numeric_limits<uint32_t>::max() : counts[row[slot]];
    };
    for (uint32_t slot = 1; slot < slots; ++slot)
      if (spare(slot) > spare(best)) best = slot;
    if (row[best] != slot_map::no_expert) --counts[row[best]];
    row[best] = static_cast<uint16_t>(expert);
    counts[expert] = 1;
    ++placed;
  }
  return placed;
}

struct taken {
  layer_step step;
  double worth = 0;  // gain in parts of the layer's mean device load, for each replica loaded
};

struct layer_goal {
  float target = 0;   // rows of a device that exchanges aim at
  float limit = 0;    // rows that the fullest device may have
  float replica = 0;  // rows that a replica may have
  float worth = 0;    // rows that each replica loaded must take away
};

// More replicas for experts whose replicas are too large; exchanges, until no device is above the target that a
// worthwhile one relieves. Where that leaves one above the limit, experts are brought to the numbers of replicas that
// EPLB gives them, and exchanges go on.
std::vector<taken> relieve(layer_state& state, const layer_goal& goal, std::span<const uint32_t> wanted,
                           uint32_t steps_max) {
  std::vector<taken> steps;
  steps.reserve(64);
  const auto take_all = [&](auto&& next) {
    while (steps.size() < steps_max) {
      const layer_step step = next();
      if (step.what == layer_step::kind::none) return;
      state.apply(step);
      steps.push_back({step, double{step.gain} / double{goal.target} / step.loads});
    }
  };
  take_all([&] { return state.step_towards(wanted, goal.replica); });
  take_all([&] { return state.best_exchange(goal.target, goal.worth); });
  if (state.highest() <= goal.limit) return steps;
  take_all([&] { return state.step_towards(wanted, 0); });
  state.forget_stuck();
  take_all([&] { return state.best_exchange(goal.target, goal.worth); });
  return steps;
}

// Of every layer's steps, in their order, those that fit the budget: the layer whose next step is worth most first.
std::vector<uint32_t> within(const std::vector<std::vector<taken>>& steps, uint64_t loads_max) {
  std::vector<uint32_t> kept(steps.size());
  std::priority_queue<std::pair<double, size_t>> next;
  for (size_t layer = 0; layer < steps.size(); ++layer)
    if (!steps[layer].empty()) next.emplace(steps[layer][0].worth, layer);
  while (!next.empty()) {
    const size_t layer = next.top().second;
    next.pop();
    const auto& step = steps[layer][kept[layer]].step;
    if (step.loads > loads_max) continue;
    loads_max -= step.loads;
    if (++kept[layer] < steps[layer].size()) next.emplace(steps[layer][kept[layer]].worth, layer);
  }
  return kept;
}

}  // namespace

result<placement_proposal> place_incremental(const placement_input& input, const incremental_settings& settings) {
  const auto sensible = [](double value) { return value >= 0 && value <= 10; };
  if (!sensible(settings.aim) || !sensible(settings.worth))
    return error{errc::invalid_argument, "incremental: aim and worth must be from 0 to 10"};
  if (input.current == nullptr) {
    auto first = place_eplb(input);
    if (first) first->reason = "incremental: nothing to start from, so as eplb";
    return first;
  }
  const uint32_t experts = input.load.experts;
  const auto rows = single_precision(expected_rows(input.load, input.limits.decay));
  const auto usable = usable_slots(input);
  const auto fresh =
      solve_eplb(rows, input.load.layers, experts, input.limits.expert_groups, input.topology, usable, false);
  const auto serving =
      static_cast<float>(usable.size() - static_cast<size_t>(std::count(usable.begin(), usable.end(), 0U)));
  auto slots = surviving(*input.current, usable);
  const uint32_t width = slots.slots();
  layer_state state(slots.first, experts);
  std::vector<uint32_t> counts(experts);
  std::vector<std::vector<taken>> steps(input.load.layers);
  uint64_t loads = 0;
  uint64_t placed = 0;
  auto before = slots;
  for (uint32_t layer = 0; layer < input.load.layers; ++layer) {
    const auto layer_rows = std::span(rows).subspan(size_t{layer} * experts, experts);
    uint16_t* row = slots.experts.data() + size_t{layer} * width;
    placed += place_missing(row, width, experts, counts);
    std::copy(row, row + width, before.experts.data() + size_t{layer} * width);
    const float highest = highest_load(fresh, layer, layer_rows, counts);
    const float mean = std::accumulate(layer_rows.begin(), layer_rows.end(), 0.0F) / serving;
    layer_goal goal;
    goal.target = mean + static_cast<float>(settings.aim) * (highest - mean);
    goal.limit = std::max(goal.target, highest) * 1.0001F;
    goal.worth = static_cast<float>(settings.worth) * mean;
    for (uint32_t expert = 0; expert < experts; ++expert)
      goal.replica = std::max(goal.replica, layer_rows[expert] / static_cast<float>(counts[expert]));
    state.start({row, width}, layer_rows);
    steps[layer] = relieve(state, goal, counts, settings.steps_max);
    for (const auto& each : steps[layer]) loads += each.step.loads;
    std::copy(state.slots().begin(), state.slots().end(), row);
  }
  const uint64_t budget = input.limits.move_bytes_max / std::max<uint64_t>(1, input.limits.expert_bytes);
  const uint64_t left = budget > placed ? budget - placed : 0;
  if (loads > left) {
    const auto kept = within(steps, left);
    loads = 0;
    for (uint32_t layer = 0; layer < input.load.layers; ++layer) {
      uint16_t* row = before.experts.data() + size_t{layer} * width;
      state.start({row, width}, std::span(rows).subspan(size_t{layer} * experts, experts));
      for (uint32_t i = 0; i < kept[layer]; ++i) {
        state.apply(steps[layer][i].step);
        loads += steps[layer][i].step.loads;
      }
      std::copy(state.slots().begin(), state.slots().end(), row);
    }
    slots = std::move(before);
  }
  return placement_proposal{to_expert_map(slots, experts),
                            "incremental: at most " + std::to_string(loads + placed) +
                                " replicas loaded, where a device was above EPLB's maximum"};
}

}  // namespace troupe
