#include "runtime/placement/placement.hpp"

#include <algorithm>
#include <map>

#include "runtime/placement/policy_registry.hpp"

namespace troupe {

namespace {

std::string place_name(uint32_t layer, uint32_t expert) {
  return "layer " + std::to_string(layer) + ", expert " + std::to_string(expert);
}

// A policy of the registry, asked about nodes of one device each.
result<placement_answer> place_by(const placement_policy& policy, const placement_request& request) {
  placement_topology topology;
  placement_liveness liveness;
  const auto live = static_cast<uint32_t>(
      std::count_if(request.nodes.begin(), request.nodes.end(), [](const node_topology& node) { return node.live; }));
  if (live == 0) return error{errc::invalid_argument, "a placement needs at least one live node"};
  const uint64_t replicas = uint64_t{request.experts} * std::min(1 + request.redundant_replicas, live);
  for (const auto& node : request.nodes) {
    const auto number = static_cast<uint16_t>(topology.nodes.size());
    topology.nodes.emplace_back();
    const auto share = static_cast<uint32_t>((replicas + live - 1) / live);
    topology.devices.push_back({number, node.slots > 0 ? node.slots : share, 0});
    liveness.live.push_back(node.live);
  }
  const auto layers = static_cast<uint32_t>(std::count(request.moe_layers.begin(), request.moe_layers.end(), true));
  const placement_limits limits;
  auto plan = place(policy, {even_load(layers, request.experts), topology, liveness, nullptr, limits});
  if (!plan) return plan.failure();
  for (auto& device : plan->map.devices) device = request.nodes[device].node;
  return placement_answer{table_of(plan->map, request.moe_layers), std::move(plan->reason)};
}

}  // namespace

result<table_policy> find_placement_policy(std::string_view name) {
  if (name == "linear") return table_policy(place_linear);
  if (name.starts_with("program:"))
    return error{errc::unsupported,
                 "a policy program would keep the coordinator waiting; try it with `troupe place`, "
                 "and serve its map with static:file=MAP.json"};
  auto policy = shipped_policies().make(std::string(name));
  if (!policy) return policy.failure();
  return table_policy(
      [policy = std::move(*policy)](const placement_request& request) { return place_by(policy, request); });
}

expert_map map_of(const placement_table& table, const std::vector<bool>& moe_layers) {
  expert_map map;
  map.layers = static_cast<uint32_t>(std::count(moe_layers.begin(), moe_layers.end(), true));
  map.experts = table.experts;
  map.offsets.push_back(0);
  for (uint32_t layer = 0; layer < table.layers; ++layer) {
    if (!moe_layers[layer]) continue;
    for (uint32_t expert = 0; expert < table.experts; ++expert) {
      const auto nodes = table.replicas(layer, expert);
      map.devices.insert(map.devices.end(), nodes.begin(), nodes.end());
      map.offsets.push_back(static_cast<uint32_t>(map.devices.size()));
    }
  }
  return map;
}

placement_table table_of(const expert_map& map, const std::vector<bool>& moe_layers) {
  placement_table table;
  table.layers = static_cast<uint32_t>(moe_layers.size());
  table.experts = map.experts;
  table.offsets.push_back(0);
  uint32_t moe_layer = 0;
  for (const bool moe : moe_layers) {
    for (uint32_t expert = 0; expert < map.experts; ++expert) {
      if (moe)
        for (const uint16_t node : map.replicas(moe_layer, expert))
          if (std::find(table.nodes.begin() + table.offsets.back(), table.nodes.end(), node) == table.nodes.end())
            table.nodes.push_back(node);
      table.offsets.push_back(static_cast<uint32_t>(table.nodes.size()));
    }
    moe_layer += moe ? 1 : 0;
  }
  return table;
}

result<placement_answer> place_linear(const placement_request& request) {
  if (request.nodes.empty()) return error{errc::invalid_argument, "a placement needs at least one node"};
  const auto count = static_cast<uint32_t>(request.nodes.size());
  const uint32_t replicas = std::min(1 + request.redundant_replicas, count);
  placement_answer plan;
  auto& table = plan.table;
  table.layers = static_cast<uint32_t>(request.moe_layers.size());
  table.experts = request.experts;
  table.offsets.push_back(0);
  for (uint32_t layer = 0; layer < table.layers; ++layer)
    for (uint32_t expert = 0; expert < table.experts; ++expert) {
      if (request.moe_layers[layer]) {
        const auto first = static_cast<uint32_t>(uint64_t{expert} * count / table.experts);
        for (uint32_t i = 0; i < replicas; ++i) table.nodes.push_back(request.nodes[(first + i) % count].node);
      }
      table.offsets.push_back(static_cast<uint32_t>(table.nodes.size()));
    }
  plan.reason = "linear: " + std::to_string(table.experts) + " experts a layer over " + std::to_string(count) +
                (count == 1 ? " node, " : " nodes, ") + std::to_string(replicas) +
                (replicas == 1 ? " replica each" : " replicas each");
  return plan;
}

result<void> validate(const placement_table& table, const placement_request& request) {
  const auto refuse = [](const std::string& why) { return error{errc::invalid_argument, "placement refused: " + why}; };
  if (table.layers != request.moe_layers.size() || table.experts != request.experts ||
      table.offsets.size() != size_t{table.layers} * table.experts + 1 || table.offsets.front() != 0 ||
      table.offsets.back() != table.nodes.size() || !std::is_sorted(table.offsets.begin(), table.offsets.end()))
    return refuse("its table does not have one entry for each layer and expert of the model");
  for (uint32_t layer = 0; layer < table.layers; ++layer) {
    if (!request.moe_layers[layer]) continue;
    std::map<uint16_t, uint32_t> held;
    for (uint32_t expert = 0; expert < table.experts; ++expert) {
      const auto nodes = table.replicas(layer, expert);
      if (nodes.empty()) return refuse(place_name(layer, expert) + " has no replica");
      for (size_t i = 0; i < nodes.size(); ++i) {
        const auto known = std::find_if(request.nodes.begin(), request.nodes.end(),
                                        [&](const node_topology& node) { return node.node == nodes[i]; });
        if (known == request.nodes.end())
          return refuse(place_name(layer, expert) + " is on node " + std::to_string(nodes[i]) +
                        ", which does not exist");
        if (std::find(nodes.begin(), nodes.begin() + static_cast<std::ptrdiff_t>(i), nodes[i]) !=
            nodes.begin() + static_cast<std::ptrdiff_t>(i))
          return refuse(place_name(layer, expert) + " is on node " + std::to_string(nodes[i]) + " twice");
        if (known->slots > 0 && ++held[nodes[i]] > known->slots)
          return refuse(place_name(layer, expert) + " exceeds the " + std::to_string(known->slots) + " slots of node " +
                        std::to_string(nodes[i]));
      }
    }
  }
  return {};
}

}  // namespace troupe
