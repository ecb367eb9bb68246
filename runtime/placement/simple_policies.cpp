#include "runtime/placement/simple_policies.hpp"

#include <algorithm>
#include <numeric>

#include "runtime/placement/random.hpp"

namespace troupe {

namespace {

// The free slots of one layer, and which device holds which expert.
class layer_filler {
 public:
  explicit layer_filler(const placement_input& input) : layers_(input.load.layers), experts_(input.load.experts) {
    slots_.layers = layers_;
    slots_.first.push_back(0);
    for (const uint32_t usable : usable_slots(input)) slots_.first.push_back(slots_.first.back() + usable);
    slots_.experts.assign(size_t{layers_} * slots_.slots(), slot_map::no_expert);
    used_.resize(slots_.first.size() - 1);
  }

  void start(uint32_t layer) {
    layer_ = layer;
    std::fill(used_.begin(), used_.end(), 0);
  }
  size_t devices() const { return used_.size(); }
  uint32_t slots() const { return slots_.slots(); }

  // Puts the expert on the first device at or after `wished` that has a free slot and not the expert. False if
  // there is none; the slot of a device that has the expert already is then left empty, not wasted.
  bool put(uint32_t expert, size_t wished) {
    for (size_t step = 0; step < devices(); ++step) {
      const size_t device = (wished + step) % devices();
      uint16_t* first = slots_.experts.data() + size_t{layer_} * slots_.slots() + slots_.first[device];
      if (used_[device] == slots_.first[device + 1] - slots_.first[device]) continue;
      if (std::find(first, first + used_[device], expert) != first + used_[device]) continue;
      first[used_[device]++] = static_cast<uint16_t>(expert);
      return true;
    }
    return false;
  }

  expert_map take() { return to_expert_map(slots_, experts_); }

 private:
  uint32_t layers_;
  uint32_t experts_;
  uint32_t layer_ = 0;
  slot_map slots_;
  std::vector<uint32_t> used_;
};

std::string sentence(const char* name, const placement_input& input, uint32_t slots) {
  return std::string(name) + ": " + std::to_string(input.load.experts) + " experts a layer in " +
         std::to_string(slots) + " slots, whatever the load";
}

}  // namespace

result<placement_proposal> place_in_blocks(const placement_input& input) {
  layer_filler filler(input);
  const uint32_t experts = input.load.experts;
  const auto block = [&](uint32_t expert) { return size_t{expert} * filler.devices() / experts; };
  for (uint32_t layer = 0; layer < input.load.layers; ++layer) {
    filler.start(layer);
    for (uint32_t expert = 0; expert < experts; ++expert) filler.put(expert, block(expert));
    for (uint32_t spare = experts; spare < filler.slots(); ++spare)
      filler.put(spare % experts, block(spare % experts) + spare / experts);
  }
  return placement_proposal{filler.take(), sentence("linear", input, filler.slots())};
}

result<placement_proposal> place_round_robin(const placement_input& input) {
  layer_filler filler(input);
  for (uint32_t layer = 0; layer < input.load.layers; ++layer) {
    filler.start(layer);
    for (uint32_t slot = 0; slot < filler.slots(); ++slot) filler.put(slot % input.load.experts, slot);
  }
  return placement_proposal{filler.take(), sentence("round_robin", input, filler.slots())};
}

result<placement_proposal> place_at_random(const placement_input& input, uint64_t seed) {
  layer_filler filler(input);
  seeded_random random(seed);
  std::vector<uint32_t> experts(input.load.experts);
  for (uint32_t layer = 0; layer < input.load.layers; ++layer) {
    filler.start(layer);
    std::iota(experts.begin(), experts.end(), 0U);
    // Each expert once in random order, then random experts; a device is drawn for each.
    for (uint32_t slot = 0; slot < filler.slots(); ++slot) {
      const uint32_t place = slot % input.load.experts;
      if (place == 0)
        for (uint32_t i = input.load.experts; i > 1; --i) std::swap(experts[i - 1], experts[random.below(i)]);
      filler.put(experts[place], random.below(static_cast<uint32_t>(filler.devices())));
    }
  }
  return placement_proposal{filler.take(),
                            sentence("random", input, filler.slots()) + ", from seed " + std::to_string(seed)};
}

result<placement_proposal> place_as_given(const placement_input& input, const expert_map& given) {
  if (given.layers != input.load.layers || given.experts != input.load.experts)
    return error{errc::invalid_argument, "static: the given map is of " + std::to_string(given.layers) +
                                             " layers and " + std::to_string(given.experts) + " experts, the load of " +
                                             std::to_string(input.load.layers) + " and " +
                                             std::to_string(input.load.experts)};
  return placement_proposal{given, "static: the map that was given"};
}

}  // namespace troupe
