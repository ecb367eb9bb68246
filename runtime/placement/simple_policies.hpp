// Policies that look at no load: the base lines that every other policy is compared with.
//
// All fill every usable slot. Pure functions, any thread; inputs are those that `place` has validated.
#pragma once

#include "runtime/placement/policy.hpp"

namespace troupe {

// Expert e starts at device e * D / E; spare slots go to experts 0, 1, ... in turn, on the devices after theirs.
result<placement_proposal> place_in_blocks(const placement_input& input);
// Experts are dealt to the devices one by one, and dealt again until the slots are full.
result<placement_proposal> place_round_robin(const placement_input& input);
// Experts on random devices, spare slots to random experts. Equal seeds give equal maps.
result<placement_proposal> place_at_random(const placement_input& input, uint64_t seed);
// A map that was given, whatever the load. Fails: invalid_argument when it is of another shape.
result<placement_proposal> place_as_given(const placement_input& input, const expert_map& given);

}  // namespace troupe
