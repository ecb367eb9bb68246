#include "runtime/placement/layer_state.hpp"

#include <algorithm>
#include <numeric>

#include "runtime/placement/expert_map.hpp"

namespace troupe {

layer_state::layer_state(std::span<const uint32_t> first, uint32_t experts)
    : first_(first),
      device_of_(first.back()),
      slots_(first.back()),
      rows_(experts),
      each_(experts),
      load_(first.size() - 1),
      changed_(load_.size()),
      holders_(experts),
      by_load_(load_.size()) {
  for (size_t device = 0; device + 1 < first.size(); ++device)
    std::fill(device_of_.begin() + first[device], device_of_.begin() + first[device + 1],
              static_cast<uint16_t>(device));
  for (auto& slots : holders_) slots.reserve(16);
  touched_.reserve(64);
}

void layer_state::start(std::span<const uint16_t> slots, std::span<const float> rows) {
  std::copy(slots.begin(), slots.end(), slots_.begin());
  std::copy(rows.begin(), rows.end(), rows_.begin());
  for (auto& held : holders_) held.clear();
  for (uint32_t slot = 0; slot < slots_.size(); ++slot)
    if (slots_[slot] != slot_map::no_expert) holders_[slots_[slot]].push_back(static_cast<uint16_t>(slot));
  std::fill(load_.begin(), load_.end(), 0.0F);
  for (size_t expert = 0; expert < rows_.size(); ++expert) {
    each_[expert] = rows_[expert] / static_cast<float>(std::max<size_t>(1, holders_[expert].size()));
    for (const uint16_t slot : holders_[expert]) load_[device_of_[slot]] += each_[expert];
  }
}

float layer_state::highest() const { return *std::max_element(load_.begin(), load_.end()); }

bool layer_state::holds(uint32_t device, uint16_t expert) const {
  const auto from = slots_.begin() + first_[device];
  const auto to = slots_.begin() + first_[device + 1];
  return std::find(from, to, expert) != to;
}

void layer_state::consider_exchanges(uint32_t fullest, uint32_t partner, float target, layer_step& best) const {
  const float above = excess(load_[fullest], target) + excess(load_[partner], target);
  for (uint32_t mine = first_[fullest]; mine < first_[fullest + 1]; ++mine) {
    if (slots_[mine] == slot_map::no_expert) continue;
    for (uint32_t theirs = first_[partner]; theirs < first_[partner + 1]; ++theirs) {
      const uint16_t other = slots_[theirs];
      const float moved = each_[slots_[mine]] - (other == slot_map::no_expert ? 0.0F : each_[other]);
      if (moved <= 0) continue;
      const float gain = above - excess(load_[fullest] - moved, target) - excess(load_[partner] + moved, target);
      // Two loads at most; only what looks better even with one is looked at closely.
      if (gain <= best.gain * static_cast<float>(other == slot_map::no_expert ? 1 : 2) /
                      static_cast<float>(std::max<uint16_t>(1, best.loads)))
        continue;
      if (holds(partner, slots_[mine]) || (other != slot_map::no_expert && holds(fullest, other))) continue;
      const uint16_t loads = other == slot_map::no_expert ? 1 : 2;
      best = {layer_step::kind::exchange, static_cast<uint16_t>(mine), static_cast<uint16_t>(theirs), 0, loads, gain};
    }
  }
}

float layer_state::gain_of_replicating(uint16_t expert, uint16_t slot, float target) {
  const auto change = [&](uint32_t device, float by) {
    if (changed_[device] == 0) touched_.push_back(static_cast<uint16_t>(device));
    changed_[device] += by;
  };
  const float before = each_[expert];
  const float after = rows_[expert] / static_cast<float>(holders_[expert].size() + 1);
  for (const uint16_t held : holders_[expert]) change(device_of_[held], after - before);
  change(device_of_[slot], after);
  if (const uint16_t dropped = slots_[slot]; dropped != slot_map::no_expert) {
    const float larger = rows_[dropped] / static_cast<float>(holders_[dropped].size() - 1);
    for (const uint16_t held : holders_[dropped]) change(device_of_[held], larger - each_[dropped]);
    change(device_of_[slot], -larger);
  }
  float gain = 0;
  for (const uint16_t device : touched_) {
    gain += excess(load_[device], target) - excess(load_[device] + changed_[device], target);
    changed_[device] = 0;
  }
  touched_.clear();
  return gain;
}

void layer_state::consider_replicas(uint32_t fullest, uint32_t partner, float target, layer_step& best) {
  for (uint32_t theirs = first_[partner]; theirs < first_[partner + 1]; ++theirs) {
    const uint16_t other = slots_[theirs];
    if (other != slot_map::no_expert && holders_[other].size() < 2) continue;
    for (uint32_t mine = first_[fullest]; mine < first_[fullest + 1]; ++mine) {
      const uint16_t expert = slots_[mine];
      if (expert == slot_map::no_expert || expert == other) continue;
      // What one replica more can take from this device at most, before looking closely.
      const float relief = each_[expert] / static_cast<float>(holders_[expert].size() + 1);
      const float most = relief * static_cast<float>(holders_[expert].size());
      const float rate = best.gain / static_cast<float>(std::max<uint16_t>(1, best.loads));
      if (most <= rate || holds(partner, expert)) continue;
      const float gain = gain_of_replicating(expert, static_cast<uint16_t>(theirs), target);
      if (gain > rate) best = {layer_step::kind::replicate, 0, static_cast<uint16_t>(theirs), expert, 1, gain};
    }
  }
}

layer_step layer_state::best_step(float target) {
  layer_step best;
  const auto fullest = static_cast<uint32_t>(std::max_element(load_.begin(), load_.end()) - load_.begin());
  if (load_[fullest] <= target) return best;
  std::iota(by_load_.begin(), by_load_.end(), 0U);
  const size_t width = std::max<size_t>(1, slots_.size() / load_.size());
  const size_t partners = std::min(load_.size(), std::max<size_t>(8, partner_slots / width));
  const auto lighter = [&](uint32_t a, uint32_t b) { return load_[a] != load_[b] ? load_[a] < load_[b] : a < b; };
  std::nth_element(by_load_.begin(), by_load_.begin() + static_cast<std::ptrdiff_t>(partners - 1), by_load_.end(),
                   lighter);
  for (size_t i = 0; i < partners; ++i) {
    const uint32_t partner = by_load_[i];
    if (partner == fullest || first_[partner] == first_[partner + 1]) continue;
    consider_exchanges(fullest, partner, target, best);
    consider_replicas(fullest, partner, target, best);
  }
  // Rounding must not let steps chase each other.
  if (best.gain <= target * 1e-6F) return {};
  return best;
}

void layer_state::spread(uint16_t expert, uint32_t count) {
  const float each = rows_[expert] / static_cast<float>(count);
  for (const uint16_t slot : holders_[expert]) load_[device_of_[slot]] += each - each_[expert];
  each_[expert] = each;
}

void layer_state::set(uint16_t slot, uint16_t expert) {
  auto& before = slots_[slot];
  if (before != slot_map::no_expert) {
    load_[device_of_[slot]] -= each_[before];
    std::erase(holders_[before], slot);
  }
  before = expert;
  if (expert != slot_map::no_expert) {
    load_[device_of_[slot]] += each_[expert];
    holders_[expert].push_back(slot);
  }
}

void layer_state::apply(const layer_step& step) {
  if (step.what == layer_step::kind::exchange) {
    const uint16_t mine = slots_[step.from];
    const uint16_t theirs = slots_[step.to];
    set(step.from, theirs);
    set(step.to, mine);
  } else if (step.what == layer_step::kind::replicate) {
    const uint16_t dropped = slots_[step.to];
    spread(step.expert, static_cast<uint32_t>(holders_[step.expert].size() + 1));
    set(step.to, step.expert);
    if (dropped != slot_map::no_expert) spread(dropped, static_cast<uint32_t>(holders_[dropped].size()));
  }
}

}  // namespace troupe
