// Inputs that tests of placement share.
#pragma once

#include <numeric>

#include "runtime/placement/load_generators.hpp"
#include "runtime/placement/policy.hpp"
#include "runtime/placement/random.hpp"

namespace troupe::testing {

// What `place` takes, owned in one place. Change a member, then ask for `input()`.
struct question {
  load_history load;
  placement_topology topology;
  placement_liveness liveness;
  placement_limits limits;
  expert_map current;

  placement_input input() const { return {load, topology, liveness, current.empty() ? nullptr : &current, limits}; }
};

inline load_history made_load(const std::string& text) { return *generate_load(*parse_generator(text)); }

// Uneven nodes, some dead devices, a random load with zeros in it; always with slots for every expert.
inline question random_question(uint64_t seed) {
  seeded_random random(seed);
  question asked;
  const uint32_t nodes = 1 + random.below(4);
  asked.topology.nodes.resize(nodes);
  const uint32_t devices = nodes + random.below(12);
  const uint32_t slots = 1 + random.below(6);
  const bool uneven = random.below(2) == 0;
  for (uint32_t i = 0; i < devices; ++i)
    asked.topology.devices.push_back(
        {static_cast<uint16_t>(i < nodes ? i : random.below(nodes)), uneven ? 1 + random.below(6) : slots, 0});
  if (random.below(2) == 0) {
    asked.liveness.live.assign(devices, true);
    asked.liveness.live[random.below(devices)] = devices == 1;
  }
  asked.load.layers = 1 + random.below(4);
  asked.load.experts = 1;
  const auto usable = usable_slots(asked.input());
  const auto all = std::accumulate(usable.begin(), usable.end(), 0U);
  asked.load.experts = std::max(1U, all - random.below(std::max(1U, all / 2)));
  asked.limits.expert_groups = asked.load.experts % 4 == 0 ? 4 : 1;
  asked.limits.expert_bytes = 1000;
  for (uint32_t window = 0; window < 1 + random.below(3); ++window) {
    auto& rows = asked.load.windows.emplace_back().rows;
    for (uint32_t i = 0; i < asked.load.layers * asked.load.experts; ++i)
      rows.push_back(random.below(4) == 0 ? 0 : random.below(1000));
  }
  return asked;
}

}  // namespace troupe::testing
