// Reaching a cluster's coordinator from another process.
#pragma once

#include <caf/all.hpp>

#include <cstdint>
#include <string>

#include "actors/coordinator.hpp"
#include "runtime/error.hpp"

namespace troupe {

struct join_address {
  std::string host;
  uint16_t port = 0;
};

// "HOST:PORT". Fails: invalid_argument.
result<join_address> parse_join_address(const std::string& text);

// Tries for `patience_s` seconds; blocks. Requires: `system` has the middleman.
// Fails: unavailable (no head answers there).
result<coordinator_actor> reach_coordinator(caf::actor_system& system, const join_address& address, int patience_s);

}  // namespace troupe
