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
  double aim = 0.99;          // of EPLB's balance, at which a layer is left alone; nearer 1 moves more
  uint32_t steps_max = 1000;  // in one layer
};

// Without a current map it is eplb. What a dead or shrunken device held and nobody else has is placed anew
// first, whatever the limit on bytes.
result<placement_proposal> place_incremental(const placement_input& input, const incremental_settings& settings);

}  // namespace troupe
