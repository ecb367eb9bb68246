#include "runtime/placement/topology.hpp"

namespace troupe {

placement_topology even_topology(uint32_t nodes, uint32_t devices_per_node, uint32_t slots) {
  placement_topology topology;
  topology.name = std::to_string(nodes) + " x " + std::to_string(devices_per_node) + " devices, " +
                  std::to_string(slots) + (slots == 1 ? " slot" : " slots");
  topology.nodes.resize(nodes);
  for (uint32_t device = 0; device < nodes * devices_per_node; ++device)
    topology.devices.push_back({static_cast<uint16_t>(device / devices_per_node), slots, 0});
  return topology;
}

}  // namespace troupe
