// A policy that searches for a better balance than EPLB's, for loads that change slowly.
//
// EPLB gives each redundant slot to the largest replica, which makes the largest replica small, and not the
// fullest device. The search starts there and lets experts trade replicas: a trade is kept when the fullest
// device, after packing anew, is not much fuller than before, and less and less of "much" (threshold accepting);
// then it exchanges replicas between devices. It takes all devices as one node. Pure function of its input and
// seed, any thread.
#pragma once

#include "runtime/placement/policy.hpp"

namespace troupe {

struct search_settings {
  uint32_t trials = 1000;  // trades tried in each layer; a trial takes some microseconds
  uint64_t seed = 1;
};

result<placement_proposal> place_by_search(const placement_input& input, const search_settings& settings);

}  // namespace troupe
