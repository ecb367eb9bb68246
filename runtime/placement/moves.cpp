#include <algorithm>
#include <numeric>

#include "runtime/placement/policy.hpp"

namespace troupe {

namespace {

// Where a replica is loaded from: a live device of the same node that has the expert, else any, else the checkpoint.
int32_t source_of(std::span<const uint16_t> holders, uint16_t to, const placement_input& input) {
  int32_t found = expert_move::from_checkpoint;
  for (const uint16_t device : holders) {
    if (!input.liveness(device)) continue;
    if (input.topology.devices[device].node == input.topology.devices[to].node) return device;
    if (found == expert_move::from_checkpoint) found = device;
  }
  return found;
}

struct layer_changes {
  std::vector<expert_move> moves;
  std::vector<expert_drop> drops;
  double gain = 0;  // of the layer's balance
};

layer_changes changes_of(uint32_t layer, const placement_plan& plan, const placement_input& input) {
  layer_changes changes;
  const size_t devices = input.topology.devices.size();
  std::vector<bool> holds(devices);
  std::vector<bool> held(devices);
  for (uint32_t expert = 0; expert < plan.map.experts; ++expert) {
    const auto after = plan.map.replicas(layer, expert);
    const auto before = input.current != nullptr ? input.current->replicas(layer, expert) : std::span<const uint16_t>{};
    for (const uint16_t device : before) held[device] = input.liveness(device);
    for (const uint16_t device : after) {
      if (!held[device] && !holds[device])
        changes.moves.push_back({layer, expert, source_of(before, device, input), device, input.limits.expert_bytes});
      holds[device] = true;
    }
    for (const uint16_t device : before) {
      if (held[device] && !holds[device]) changes.drops.push_back({layer, expert, device});
      held[device] = false;
    }
    for (const uint16_t device : after) holds[device] = false;
  }
  return changes;
}

}  // namespace

void add_moves(placement_plan& plan, const placement_input& input) {
  const auto rows = expected_rows(input.load, input.limits.decay);
  const auto slots = usable_slots(input);
  const size_t devices = slots.size();
  std::vector<layer_changes> layers;
  const auto after = device_rows(plan.map, rows, devices);
  const auto before = input.current != nullptr ? device_rows(*input.current, rows, devices) : std::vector<double>{};
  for (uint32_t layer = 0; layer < plan.map.layers; ++layer) {
    auto changes = changes_of(layer, plan, input);
    if (!before.empty())
      changes.gain = balance_of({after.data() + layer * devices, devices}, slots) -
                     balance_of({before.data() + layer * devices, devices}, slots);
    layers.push_back(std::move(changes));
  }
  std::vector<uint32_t> order(layers.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return layers[a].gain > layers[b].gain; });
  std::vector<uint32_t> staged(devices);
  std::vector<double> sending(devices);
  std::vector<double> receiving(devices);
  for (const uint32_t layer : order) {
    const auto& changes = layers[layer];
    std::fill(staged.begin(), staged.end(), 0);
    for (const auto& move : changes.moves) {
      staged[move.to] += 1;
      plan.move_bytes += move.bytes;
      const auto& topology = input.topology;
      const bool near =
          move.from >= 0 && topology.devices[static_cast<size_t>(move.from)].node == topology.devices[move.to].node;
      const double gbytes_s = near ? topology.within_node_gbytes_s : topology.between_nodes_gbytes_s;
      const double seconds = gbytes_s > 0 ? static_cast<double>(move.bytes) / (gbytes_s * 1e9) : 0;
      receiving[move.to] += seconds;
      if (move.from >= 0) sending[static_cast<size_t>(move.from)] += seconds;
    }
    if (input.current != nullptr) {
      // Of what a device loads, that much comes on top of its slots until the layer's drops.
      std::vector<int64_t> held(devices);
      for (uint32_t expert = 0; expert < plan.map.experts; ++expert)
        for (const uint16_t device : input.current->replicas(layer, expert)) ++held[device];
      for (size_t device = 0; device < devices; ++device) {
        const int64_t over = held[device] + staged[device] - int64_t{input.topology.devices[device].slots};
        plan.staging_replicas_max =
            std::max(plan.staging_replicas_max, static_cast<uint32_t>(std::max<int64_t>(0, over)));
      }
    }
    plan.moves.insert(plan.moves.end(), changes.moves.begin(), changes.moves.end());
    plan.drops.insert(plan.drops.end(), changes.drops.begin(), changes.drops.end());
  }
  for (size_t device = 0; device < devices; ++device)
    plan.move_seconds = std::max({plan.move_seconds, sending[device], receiving[device]});
}

}  // namespace troupe
