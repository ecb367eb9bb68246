#include "runtime/placement/layer_state.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "runtime/placement/expert_map.hpp"

namespace troupe {

namespace {

// Four floats at a time; every x86-64 has them.
constexpr uint32_t lanes = 4;
using lane_vector [[gnu::vector_size(lanes * sizeof(float))]] = float;

lane_vector load_lanes(const float* from) {
  lane_vector value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

lane_vector all_lanes(float value) { return lane_vector{value, value, value, value}; }

lane_vector larger(lane_vector a, lane_vector b) { return a > b ? a : b; }

}  // namespace

layer_state::layer_state(std::span<const uint32_t> first, uint32_t experts)
    : first_(first),
      width_((first.back() + lanes - 1) / lanes * lanes),
      device_of_(first.back()),
      slots_(first.back()),
      rows_(experts),
      each_(experts),
      counts_(experts),
      load_(first.size() - 1),
      stuck_(load_.size()),
      content_(width_),
      rest_(width_, std::numeric_limits<float>::max()),
      cheaper_(width_, 1.0F),
      gains_(width_) {
  for (size_t device = 0; device + 1 < first.size(); ++device)
    std::fill(device_of_.begin() + first[device], device_of_.begin() + first[device + 1],
              static_cast<uint16_t>(device));
}

void layer_state::start(std::span<const uint16_t> slots, std::span<const float> rows) {
  std::copy(slots.begin(), slots.end(), slots_.begin());
  std::copy(rows.begin(), rows.end(), rows_.begin());
  std::fill(counts_.begin(), counts_.end(), uint16_t{0});
  for (const uint16_t expert : slots_)
    if (expert != slot_map::no_expert) ++counts_[expert];
  for (size_t expert = 0; expert < rows_.size(); ++expert)
    each_[expert] = rows_[expert] / static_cast<float>(std::max<uint16_t>(1, counts_[expert]));
  for (uint32_t device = 0; device < load_.size(); ++device) refresh(device);
  forget_stuck();
}

// After any change of a device's slots or of what they hold.
void layer_state::refresh(uint32_t device) {
  float load = 0;
  for (uint32_t slot = first_[device]; slot < first_[device + 1]; ++slot) {
    const bool empty = slots_[slot] == slot_map::no_expert;
    content_[slot] = empty ? 0 : each_[slots_[slot]];
    cheaper_[slot] = empty ? 2 : 1;
    load += content_[slot];
  }
  load_[device] = load;
  for (uint32_t slot = first_[device]; slot < first_[device + 1]; ++slot) rest_[slot] = load - content_[slot];
  stuck_[device] = false;
}

float layer_state::highest() const { return *std::max_element(load_.begin(), load_.end()); }

bool layer_state::holds(uint32_t device, uint16_t expert) const {
  const auto from = slots_.begin() + first_[device];
  const auto to = slots_.begin() + first_[device + 1];
  return std::find(from, to, expert) != to;
}

// Whether an exchange wastes no slot.
bool layer_state::allowed(uint32_t mine, uint32_t theirs) const {
  const uint32_t device = device_of_[mine];
  const uint32_t partner = device_of_[theirs];
  return device != partner && !holds(partner, slots_[mine]) &&
         (slots_[theirs] == slot_map::no_expert || !holds(device, slots_[theirs]));
}

// Rows above the target that go away when `own` of a device with `load` is exchanged with each slot in turn, doubled
// where that loads only one replica; their maximum.
float layer_state::measure_gains(float own, float load, float target) {
  const auto zero = all_lanes(0);
  const auto owned = all_lanes(own);
  const auto goal = all_lanes(target);
  const auto above = all_lanes(load - target);
  auto most = zero;
  for (uint32_t slot = 0; slot < width_; slot += lanes) {
    const auto theirs = load_lanes(content_.data() + slot);
    const auto others = load_lanes(rest_.data() + slot) - goal;
    const auto mine = above - owned + theirs;  // what this device has above the target afterwards
    const auto gain = (above + larger(zero, others + theirs) - larger(zero, mine) - larger(zero, others + owned)) *
                      load_lanes(cheaper_.data() + slot);
    std::memcpy(gains_.data() + slot, &gain, sizeof gain);
    most = larger(most, gain);
  }
  float highest = 0;
  for (uint32_t lane = 0; lane < lanes; ++lane) highest = std::max(highest, most[lane]);
  return highest;
}

layer_step layer_state::best_exchange_from(uint32_t fullest, float target, float worth) {
  layer_step best;
  float best_gain = 2 * worth;  // for two loads
  for (uint32_t mine = first_[fullest]; mine < first_[fullest + 1]; ++mine) {
    if (content_[mine] <= best_gain / 2) continue;
    for (float most = measure_gains(content_[mine], load_[fullest], target); most > best_gain;) {
      const auto found = static_cast<uint32_t>(std::find(gains_.begin(), gains_.end(), most) - gains_.begin());
      if (allowed(mine, found)) {
        best_gain = most;
        const bool empty = slots_[found] == slot_map::no_expert;
        const auto loads = static_cast<uint16_t>(empty ? 1 : 2);
        best = {layer_step::kind::exchange, static_cast<uint16_t>(mine), static_cast<uint16_t>(found), 0, loads,
                empty ? most / 2 : most};
        break;
      }
      gains_[found] = 0;
      most = *std::max_element(gains_.begin(), gains_.end());
    }
  }
  return best;
}

layer_step layer_state::best_exchange(float target, float worth) {
  // Rounding must not let steps chase each other.
  worth = std::max(worth, target * 1e-5F);
  for (;;) {
    uint32_t fullest = 0;
    float highest = target + worth;
    for (uint32_t device = 0; device < load_.size(); ++device)
      if (load_[device] > highest && !stuck_[device]) {
        highest = load_[device];
        fullest = device;
      }
    if (highest == target + worth) return {};
    const auto step = best_exchange_from(fullest, target, worth);
    if (step.what != layer_step::kind::none) return step;
    stuck_[fullest] = true;
  }
}

layer_step layer_state::step_towards(std::span<const uint32_t> wanted, float above) {
  int32_t needy = -1;
  for (size_t expert = 0; expert < wanted.size(); ++expert)
    if (each_[expert] > above && counts_[expert] < wanted[expert]) {
      needy = static_cast<int32_t>(expert);
      above = each_[expert];
    }
  if (needy < 0) return {};
  const auto expert = static_cast<uint16_t>(needy);
  layer_step best;
  float lightest = std::numeric_limits<float>::max();
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) {
    const uint16_t other = slots_[slot];
    if (other != slot_map::no_expert && counts_[other] <= std::max(1U, wanted[other])) continue;
    if (rest_[slot] >= lightest || holds(device_of_[slot], expert)) continue;
    best = {layer_step::kind::replicate, 0, static_cast<uint16_t>(slot), expert, 1, 0};
    lightest = rest_[slot];
  }
  return best;
}

// Gives an expert's replicas the rows of so many.
void layer_state::spread(uint16_t expert, uint32_t count) {
  counts_[expert] = static_cast<uint16_t>(count);
  each_[expert] = rows_[expert] / static_cast<float>(count);
  for (uint32_t slot = 0; slot < slots_.size(); ++slot)
    if (slots_[slot] == expert) refresh(device_of_[slot]);
}

void layer_state::set(uint16_t slot, uint16_t expert) {
  slots_[slot] = expert;
  refresh(device_of_[slot]);
}

void layer_state::apply(const layer_step& step) {
  if (step.what == layer_step::kind::exchange) {
    const uint16_t mine = slots_[step.from];
    set(step.from, slots_[step.to]);
    set(step.to, mine);
  } else if (step.what == layer_step::kind::replicate) {
    const uint16_t dropped = slots_[step.to];
    set(step.to, step.expert);
    spread(step.expert, counts_[step.expert] + 1U);
    if (dropped != slot_map::no_expert) spread(dropped, counts_[dropped] - 1U);
  }
}

}  // namespace troupe
