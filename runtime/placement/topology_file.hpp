// Topologies in YAML (config/topologies; docs/policies.md lists the keys). Any thread.
#pragma once

#include <string>

#include "runtime/error.hpp"
#include "runtime/placement/topology.hpp"

namespace troupe {

// Fails: not_found; malformed for what is no YAML, an unknown key (with the nearest valid one) or a number out
// of range. The sentence names the file and the line.
result<placement_topology> read_topology(const std::string& path);
// `source` is what messages call it.
result<placement_topology> parse_topology(const std::string& text, const std::string& source);

}  // namespace troupe
