// Where experts live, by device: the answer of a placement policy.
//
// Pure values, any thread. `placement.hpp` has the table that serving nodes exchange.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace troupe {

// Replicas of every (layer, expert), flat: entry i = layer * experts + expert is
// devices[offsets[i] .. offsets[i + 1]). A device that is named twice wastes a slot, which is legal.
struct expert_map {
  uint32_t layers = 0;
  uint32_t experts = 0;
  std::vector<uint32_t> offsets;  // [layers * experts + 1]
  std::vector<uint16_t> devices;

  std::span<const uint16_t> replicas(uint32_t layer, uint32_t expert) const {
    const size_t i = size_t{layer} * experts + expert;
    return {devices.data() + offsets[i], offsets[i + 1] - offsets[i]};
  }
  bool empty() const { return offsets.empty(); }
  bool operator==(const expert_map&) const = default;
};

// The same placement seen from the devices: experts[layer, slot], where the slots of device d are
// [first[d], first[d + 1]). Unused slots hold `no_expert`.
struct slot_map {
  static constexpr uint16_t no_expert = 0xffff;
  uint32_t layers = 0;
  std::vector<uint32_t> first;    // [devices + 1]
  std::vector<uint16_t> experts;  // [layers, first.back()]

  uint32_t slots() const { return first.back(); }
};

// Requires: every expert below `experts`, or no_expert. Replicas are listed by device, ascending.
expert_map to_expert_map(const slot_map& slots, uint32_t experts);

// Slots that hold a second replica of an expert that their device holds already.
uint64_t wasted_slots(const expert_map& map);

}  // namespace troupe
