#include "runtime/placement/expert_map.hpp"

#include <algorithm>

namespace troupe {

expert_map to_expert_map(const slot_map& slots, uint32_t experts) {
  expert_map map;
  map.layers = slots.layers;
  map.experts = experts;
  map.offsets.resize(size_t{slots.layers} * experts + 1);
  map.devices.resize(slots.experts.size());
  const uint32_t width = slots.slots();
  std::vector<uint16_t> device_of(width);
  for (size_t device = 0; device + 1 < slots.first.size(); ++device)
    std::fill(device_of.begin() + slots.first[device], device_of.begin() + slots.first[device + 1],
              static_cast<uint16_t>(device));
  std::vector<uint32_t> next(experts + 1);
  uint32_t written = 0;
  for (uint32_t layer = 0; layer < slots.layers; ++layer) {
    const uint16_t* row = slots.experts.data() + size_t{layer} * width;
    std::fill(next.begin(), next.end(), 0);
    for (uint32_t slot = 0; slot < width; ++slot)
      if (row[slot] != slot_map::no_expert) ++next[row[slot]];
    uint32_t* offsets = map.offsets.data() + size_t{layer} * experts;
    for (uint32_t expert = 0; expert < experts; ++expert) {
      offsets[expert] = written;
      written += next[expert];
      next[expert] = offsets[expert];
    }
    for (uint32_t slot = 0; slot < width; ++slot)
      if (row[slot] != slot_map::no_expert) map.devices[next[row[slot]]++] = device_of[slot];
  }
  map.offsets.back() = written;
  map.devices.resize(written);
  return map;
}

uint64_t wasted_slots(const expert_map& map) {
  uint64_t wasted = 0;
  std::vector<uint16_t> sorted;
  for (size_t i = 0; i + 1 < map.offsets.size(); ++i) {
    sorted.assign(map.devices.begin() + map.offsets[i], map.devices.begin() + map.offsets[i + 1]);
    std::sort(sorted.begin(), sorted.end());
    const auto distinct = std::unique(sorted.begin(), sorted.end()) - sorted.begin();
    wasted += sorted.size() - static_cast<size_t>(distinct);
  }
  return wasted;
}

}  // namespace troupe
