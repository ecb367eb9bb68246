// The placement table that serving nodes exchange, and the policies by the name in their configuration.
//
// The coordinator asks for a table once and validates it before it publishes it; a node is one device then.
// MoE layers are numbered by their index in the model; dense layers have no entries. The interface for
// policies themselves is policy.hpp. Pure functions, any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/error.hpp"
#include "runtime/placement/expert_map.hpp"

namespace troupe {

// Replicas of every (layer, expert): the nodes that hold it, preferred first. Flat, so that it travels
// in one message: entry (layer, expert) is nodes[offsets[i] .. offsets[i + 1]), i = layer * experts + expert.
struct placement_table {
  uint32_t layers = 0;  // all layers of the model; dense ones have empty entries
  uint32_t experts = 0;
  std::vector<uint32_t> offsets;
  std::vector<uint16_t> nodes;
  // Parallel to `nodes`: the part of an expert's rows that each replica should get, in 1/65535, for the
  // `weighted` selection. Empty: alike.
  std::vector<uint16_t> shares;

  std::span<const uint16_t> replicas(uint32_t layer, uint32_t expert) const {
    const size_t i = size_t{layer} * experts + expert;
    return {nodes.data() + offsets[i], offsets[i + 1] - offsets[i]};
  }
  bool holds(uint32_t layer, uint32_t expert, uint16_t node) const {
    const auto held = replicas(layer, expert);
    return std::find(held.begin(), held.end(), node) != held.end();
  }
  bool operator==(const placement_table&) const = default;

  template <class Inspector>
  friend auto inspect(Inspector& f, placement_table& table) {
    return f(table.layers, table.experts, table.offsets, table.nodes, table.shares);
  }
};

struct node_topology {
  uint16_t node = 0;
  uint32_t slots = 0;  // expert replicas a layer that it can hold; 0: no limit
  bool live = true;
};

struct placement_request {
  std::vector<bool> moe_layers;  // one entry a layer of the model
  uint32_t experts = 0;
  uint32_t redundant_replicas = 1;   // further replicas of each expert, where nodes allow
  std::vector<node_topology> nodes;  // the unit's nodes, dead ones included
};

struct placement_answer {
  placement_table table;
  std::string reason;  // one sentence
};

// Thread: any; pure. Fails: invalid_argument with a sentence.
using table_policy = std::function<result<placement_answer>(const placement_request&)>;

// A policy by its name in the configuration: `linear`, or one of policy_registry.hpp, which then sees every
// expert equally loaded. Fails: not_found, naming those that exist.
result<table_policy> find_placement_policy(std::string_view name);

// The same placement as policies see it: MoE layers only, numbered from 0; a device is a node of that number.
// `moe_layers` has an entry for each layer of the table, true for those with experts.
expert_map map_of(const placement_table& table, const std::vector<bool>& moe_layers);
// And back. A second replica on a node serves nothing and is left out. Requires: the map's layers are the true ones.
placement_table table_of(const expert_map& map, const std::vector<bool>& moe_layers);

// Expert e of a layer goes to node e * N / E; redundant replicas go to the nodes after it.
result<placement_answer> place_linear(const placement_request& request);

// Checks a table against a request: every expert of every MoE layer has a replica, every node exists,
// no node holds more than its slots, no entry names a node twice. The sentence names layer and expert.
result<void> validate(const placement_table& table, const placement_request& request);

}  // namespace troupe
