// The policy that changes little: from the current map, the best balance gained for each byte moved.
//
// It solves EPLB on the same load as a yardstick. In each layer, experts whose replicas are larger than any of
// EPLB's get replicas in place of experts that have more than EPLB gives them; then it relieves the fullest devices by
// exchanges of two replicas, each the one that takes most rows above the target away, as long as it is worth its
// bytes. Of all layers' steps those are taken that are worth most, within the limit on bytes. Pure function, any
// thread.
#pragma once

#include "runtime/placement/policy.hpp"

namespace troupe {

struct incremental_settings {
  double aim = 0.4;           // how far above the mean device EPLB's fullest is: what part of that is the target
  double worth = 0.025;       // of the mean device's rows, that each replica loaded must take away
  uint32_t steps_max = 1000;  // in one layer
};

// Without a current map it is eplb. What a dead or shrunken device held and nobody else has is placed anew
// first, whatever the limit on bytes.
result<placement_proposal> place_incremental(const placement_input& input, const incremental_settings& settings);

}  // namespace troupe
