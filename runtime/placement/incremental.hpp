// The policy that changes little: from the current map, the best balance gained for each byte moved.
//
// In each layer it relieves the fullest device, step by step, until no device is above the target: EPLB's
// maximum on the same load over `aim`. A step is an exchange of two replicas, or one more replica of a hot
// expert in place of one that is not missed. Steps of all layers are taken best first within the limit on
// bytes. Pure function, any thread.
#pragma once

#include "runtime/placement/policy.hpp"

namespace troupe {

struct incremental_settings {
  double aim = 0.5;           // how far above the mean device EPLB's fullest is: what part of that is the target
  double worth = 0.02;        // of the mean device's rows, that each replica loaded must take away
  uint32_t steps_max = 1000;  // in one layer
};

// Without a current map it is eplb. What a dead or shrunken device held and nobody else has is placed anew
// first, whatever the limit on bytes.
result<placement_proposal> place_incremental(const placement_input& input, const incremental_settings& settings);

}  // namespace troupe
