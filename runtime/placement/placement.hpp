// Where experts live: the placement table and the policies that make it.
//
// A policy is a pure function from what is known (load, topology, liveness, the current table, limits)
// to a table. The runtime validates every table before it publishes it. MoE layers are numbered by
// their index in the model; dense layers have no entries.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/error.hpp"

namespace troupe {

// Replicas of every (layer, expert): the nodes that hold it, preferred first. Flat, so that it travels
// in one message: entry (layer, expert) is nodes[offsets[i] .. offsets[i + 1]), i = layer * experts + expert.
struct placement_table {
  uint32_t layers = 0;  // all layers of the model; dense ones have empty entries
  uint32_t experts = 0;
  std::vector<uint32_t> offsets;
  std::vector<uint16_t> nodes;

  std::span<const uint16_t> replicas(uint32_t layer, uint32_t expert) const {
    const size_t i = size_t{layer} * experts + expert;
    return {nodes.data() + offsets[i], offsets[i + 1] - offsets[i]};
  }

  template <class Inspector>
  friend auto inspect(Inspector& f, placement_table& table) {
    return f(table.layers, table.experts, table.offsets, table.nodes);
  }
};

// Rows dispatched to each (layer, expert) in a window: rows[layer * experts + expert].
struct load_history {
  std::vector<uint64_t> rows;
};

struct node_topology {
  uint16_t node = 0;
  uint32_t slots = 0;  // expert replicas a layer that it can hold; 0: no limit
  bool live = true;
};

struct placement_request {
  std::vector<bool> moe_layers;  // one entry a layer of the model
  uint32_t experts = 0;
  uint32_t redundant_replicas = 1;           // further replicas of each expert, where nodes allow
  std::vector<node_topology> nodes;          // the unit's nodes, dead ones included
  load_history load;                         // may be empty
  const placement_table* current = nullptr;  // null at the start
};

struct placement_plan {
  placement_table table;
  std::string reason;  // one sentence
};

// Thread: any; pure. Fails: invalid_argument with a sentence.
using placement_policy = std::function<result<placement_plan>(const placement_request&)>;

// A policy by its name in the configuration. Fails: not_found, naming those that exist.
result<placement_policy> find_placement_policy(std::string_view name);

// Expert e of a layer goes to node e * N / E; redundant replicas go to the nodes after it.
result<placement_plan> place_linear(const placement_request& request);

// Checks a table against a request: every expert of every MoE layer has a replica, every node exists,
// no node holds more than its slots, no entry names a node twice. The sentence names layer and expert.
result<void> validate(const placement_table& table, const placement_request& request);

}  // namespace troupe
