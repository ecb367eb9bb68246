// The algorithm of DeepSeek's EPLB, and a variant without wasted slots.
//
// EPLB, in each layer: where the expert groups divide among the nodes, it first packs whole groups onto nodes
// (hierarchical), else it takes all devices as one node (global); gives every redundant slot to the expert
// whose replicas are then largest; and packs the replicas, largest first, each onto the lightest device that
// has a free slot. Arithmetic is FP32, as published, so that maps are equal; where two loads tie, the lower
// index goes first (the published code leaves that to an unstable sort). Pure functions, any thread.
#pragma once

#include "runtime/placement/policy.hpp"

namespace troupe {

// Equal to the published algorithm when all live devices have equal slots; otherwise the same steps with the
// slots that there are, always global.
result<placement_proposal> place_eplb(const placement_input& input);

// The same, but no device gets an expert twice; where that is impossible a slot stays empty.
result<placement_proposal> place_eplb_distinct(const placement_input& input);

// The work of `place_eplb` by slots, for those who go on from there. `rows` is [layers, experts], FP32.
// Requires: slots for every expert.
slot_map solve_eplb(std::span<const float> rows, uint32_t layers, uint32_t experts, uint32_t groups,
                    const placement_topology& topology, std::span<const uint32_t> usable, bool distinct);

// expected_rows as FP32, rounded once.
std::vector<float> single_precision(std::span<const double> rows);

}  // namespace troupe
