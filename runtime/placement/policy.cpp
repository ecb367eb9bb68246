#include "runtime/placement/policy.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

namespace troupe {

namespace {

error refused(std::string why) { return {errc::invalid_argument, std::move(why)}; }

std::string place_name(uint32_t layer, uint32_t expert) {
  return "layer " + std::to_string(layer) + ", expert " + std::to_string(expert);
}

bool has_shape(const expert_map& map, const load_history& load) {
  return map.layers == load.layers && map.experts == load.experts &&
         map.offsets.size() == size_t{map.layers} * map.experts + 1 && map.offsets.front() == 0 &&
         map.offsets.back() == map.devices.size() && std::is_sorted(map.offsets.begin(), map.offsets.end());
}

// Counts the replicas that a device and a node hold, in one layer and in all.
class occupancy {
 public:
  explicit occupancy(const placement_input& input)
      : input_(input),
        in_layer_(input.topology.devices.size()),
        held_(in_layer_.size()),
        node_in_layer_(input.topology.nodes.size()),
        node_held_(node_in_layer_.size()) {}

  void next_layer() {
    std::fill(in_layer_.begin(), in_layer_.end(), 0);
    std::fill(node_in_layer_.begin(), node_in_layer_.end(), 0);
  }

  // What adding one replica exceeds, or nothing.
  std::string add(uint16_t number) {
    const auto& device = input_.topology.devices[number];
    const auto& node = input_.topology.nodes[device.node];
    const uint64_t bytes = input_.limits.expert_bytes;
    if (++in_layer_[number] > device.slots)
      return "the " + std::to_string(device.slots) + " slots of device " + std::to_string(number);
    if (++held_[number] * bytes > device.memory_bytes && device.memory_bytes > 0)
      return "the memory of device " + std::to_string(number) + " (" + std::to_string(device.memory_bytes) + " bytes)";
    if (++node_in_layer_[device.node] > node.slots && node.slots > 0)
      return "the " + std::to_string(node.slots) + " slots of node " + std::to_string(device.node);
    if (++node_held_[device.node] * bytes > node.memory_bytes && node.memory_bytes > 0)
      return "the memory of node " + std::to_string(device.node) + " (" + std::to_string(node.memory_bytes) + " bytes)";
    return {};
  }

 private:
  const placement_input& input_;
  std::vector<uint32_t> in_layer_;
  std::vector<uint64_t> held_;
  std::vector<uint32_t> node_in_layer_;
  std::vector<uint64_t> node_held_;
};

}  // namespace

std::vector<uint32_t> usable_slots(const placement_input& input) {
  const auto& topology = input.topology;
  const uint64_t slot_bytes = std::max<uint64_t>(1, input.limits.expert_bytes * input.load.layers);
  const auto fit = [&](uint64_t slots, uint64_t memory) {
    return memory == 0 ? slots : std::min(slots, memory / slot_bytes);
  };
  std::vector<uint32_t> usable(topology.devices.size());
  std::vector<std::vector<size_t>> of_node(topology.nodes.size());
  for (size_t device = 0; device < usable.size(); ++device) {
    const auto& limit = topology.devices[device];
    if (!input.liveness(device)) continue;
    usable[device] = static_cast<uint32_t>(fit(limit.slots, limit.memory_bytes));
    if (limit.node < of_node.size()) of_node[limit.node].push_back(device);
  }
  for (size_t node = 0; node < topology.nodes.size(); ++node) {
    const auto& limit = topology.nodes[node];
    const auto held = [&](uint32_t each_max) {
      uint64_t sum = 0;
      for (const size_t device : of_node[node]) sum += std::min(usable[device], each_max);
      return sum;
    };
    uint64_t allowed = held(std::numeric_limits<uint32_t>::max());
    if (limit.slots > 0) allowed = std::min<uint64_t>(allowed, limit.slots);
    allowed = fit(allowed, limit.memory_bytes);
    // A node's own limit takes from its fullest devices: all keep up to the same number, the first of them one more.
    uint32_t level = 0;
    for (uint32_t step = uint32_t{1} << 31; step > 0; step >>= 1)
      if (level + step > level && held(level + step) <= allowed) level += step;
    uint64_t more = allowed - held(level);
    for (const size_t device : of_node[node]) {
      if (usable[device] <= level) continue;
      usable[device] = level + (more > 0 ? 1 : 0);
      more -= more > 0 ? 1 : 0;
    }
  }
  return usable;
}

result<void> validate(const placement_input& input) {
  const auto& load = input.load;
  const auto& topology = input.topology;
  if (load.layers == 0 || load.experts == 0) return refused("a load without layers or experts cannot be placed");
  if (load.experts >= slot_map::no_expert || topology.devices.size() >= slot_map::no_expert)
    return refused("at most 65534 experts a layer and 65534 devices can be placed");
  if (topology.devices.empty()) return refused("a placement needs at least one device");
  for (size_t device = 0; device < topology.devices.size(); ++device)
    if (topology.devices[device].node >= topology.nodes.size())
      return refused("device " + std::to_string(device) + " is on node " +
                     std::to_string(topology.devices[device].node) + ", which the topology does not have");
  if (!input.liveness.live.empty() && input.liveness.live.size() != topology.devices.size())
    return refused("liveness has " + std::to_string(input.liveness.live.size()) + " entries for " +
                   std::to_string(topology.devices.size()) + " devices");
  const size_t entries = size_t{load.layers} * load.experts;
  for (size_t window = 0; window < load.windows.size(); ++window)
    if (load.windows[window].rows.size() != entries ||
        (!load.windows[window].source_rows.empty() &&
         load.windows[window].source_rows.size() != entries * load.sources))
      return refused("window " + std::to_string(window) + " of the load does not have one entry for each of " +
                     std::to_string(load.layers) + " layers and " + std::to_string(load.experts) + " experts");
  if (input.limits.decay < 0 || input.limits.decay >= 1) return refused("the decay must be at least 0 and below 1");
  if (input.current != nullptr && !has_shape(*input.current, load))
    return refused("the current map does not have the layers and experts of the load");
  if (input.current != nullptr)
    for (const uint16_t device : input.current->devices)
      if (device >= topology.devices.size())
        return refused("the current map names device " + std::to_string(device) + ", which does not exist");
  const auto usable = usable_slots(input);
  const uint64_t slots = std::accumulate(usable.begin(), usable.end(), uint64_t{0});
  if (slots >= slot_map::no_expert)
    return refused("the live devices have " + std::to_string(slots) + " slots a layer; at most 65534 are dealt with");
  if (slots < load.experts)
    return refused("the live devices have " + std::to_string(slots) + " slots a layer, fewer than the " +
                   std::to_string(load.experts) + " experts");
  return {};
}

result<void> validate(const expert_map& map, const placement_input& input) {
  if (!has_shape(map, input.load))
    return refused("the map does not have one entry for each of " + std::to_string(input.load.layers) + " layers and " +
                   std::to_string(input.load.experts) + " experts");
  occupancy held(input);
  for (uint32_t layer = 0; layer < map.layers; ++layer) {
    held.next_layer();
    for (uint32_t expert = 0; expert < map.experts; ++expert) {
      const auto replicas = map.replicas(layer, expert);
      if (replicas.empty()) return refused(place_name(layer, expert) + " has no replica");
      for (const uint16_t device : replicas) {
        if (device >= input.topology.devices.size())
          return refused(place_name(layer, expert) + " is on device " + std::to_string(device) +
                         ", which does not exist; there are " + std::to_string(input.topology.devices.size()));
        if (!input.liveness(device))
          return refused(place_name(layer, expert) + " is on device " + std::to_string(device) + ", which is dead");
        if (const auto exceeded = held.add(device); !exceeded.empty())
          return refused(place_name(layer, expert) + " exceeds " + exceeded);
      }
    }
  }
  return {};
}

result<placement_plan> place(const placement_policy& policy, const placement_input& input) {
  if (auto valid = validate(input); !valid) return valid.failure();
  auto proposal = policy(input);
  if (!proposal) return proposal.failure();
  if (auto valid = validate(proposal->map, input); !valid)
    return refused("the placement is refused: " + valid.failure().message);
  placement_plan plan;
  plan.map = std::move(proposal->map);
  plan.reason = std::move(proposal->reason);
  const auto rows = expected_rows(input.load, input.limits.decay);
  const auto slots = usable_slots(input);
  plan.after = objective_of(plan.map, rows, slots);
  if (input.current != nullptr) plan.before = objective_of(*input.current, rows, slots);
  add_moves(plan, input);
  return plan;
}

}  // namespace troupe
