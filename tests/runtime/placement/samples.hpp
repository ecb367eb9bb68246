// Inputs that tests of placement share.
#pragma once

#include "runtime/placement/policy.hpp"

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

}  // namespace troupe::testing
