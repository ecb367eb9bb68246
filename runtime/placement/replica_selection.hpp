// Which replica of an expert serves a row.
//
// A policy of its own, beside where replicas live. Every function is pure and deterministic: the choice for a
// row depends on the map, its source and its key alone, so that a retry or a simulation chooses the same. Any
// thread.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/placement/policy.hpp"

namespace troupe {

enum class replica_selection {
  first,     // on the source's device, else the first of the list: fewest nodes read an expert's weights
  even,      // replicas take turns: what EPLB assumes
  nearest,   // on the source's device, else on its node, else any; equals take turns
  weighted,  // in shares that level the devices' rows
};

std::optional<replica_selection> replica_selection_from_name(std::string_view name);
std::string_view name(replica_selection selection);

// The replica that serves a row, as an index into `replicas`. `key` tells rows apart (a hash of request and
// position); `shares`, parallel to `replicas`, is for weighted only. Requires: replicas is not empty; source is
// a device of the topology.
size_t select_replica(replica_selection selection, std::span<const uint16_t> replicas, std::span<const float> shares,
                      const placement_topology& topology, uint16_t source, uint64_t key);

// The part of each replica, parallel to `map.devices`, that makes the fullest devices as light as shares alone
// can make them: experts in turn level their rows over the devices that hold them. `rows` is [layers, experts].
std::vector<float> level_shares(const expert_map& map, std::span<const double> rows, size_t devices, int rounds = 24);

// What happens to one window under a selection: rows of each device, and how many rows cross nodes.
struct dispatched_rows {
  std::vector<double> device_rows;  // [layers, devices]
  double crossing = 0;              // rows, of all layers, whose source is on another node
  double all = 0;
};

// The device of each of S sources: source s is at device s * D / S, which in a cluster is its node (device and node
// are one there), and where that one is dead at the next live one, as if its sequences went on there. With no
// sources, every live device. Empty when none lives.
std::vector<uint16_t> source_devices(uint32_t sources, size_t devices, const placement_liveness& liveness);

// Rows come from the sources that the window tells apart, else from all live devices alike. `shares` are those of
// `weighted`, decided beforehand on an older load.
dispatched_rows dispatch(const expert_map& map, const load_history& load, const load_window& window,
                         const placement_topology& topology, const placement_liveness& liveness,
                         replica_selection selection, std::span<const float> shares);

}  // namespace troupe
