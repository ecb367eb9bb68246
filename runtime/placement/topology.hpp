// The machines that experts are placed on: nodes, their devices, and what each can hold.
//
// Read from YAML (topology_file.hpp) or made by the caller, who owns it; policies only read. Pure
// values, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

struct placement_device {
  uint16_t node = 0;
  uint32_t slots = 1;         // expert replicas of one layer that it holds at most
  uint64_t memory_bytes = 0;  // for expert weights of all layers; 0: no limit
};

struct placement_node {
  uint32_t slots = 0;         // expert replicas of one layer that all its devices hold; 0: no further limit
  uint64_t memory_bytes = 0;  // for expert weights of all its devices; 0: no further limit
};

struct placement_topology {
  std::string name;
  std::vector<placement_node> nodes;
  std::vector<placement_device> devices;
  double within_node_gbytes_s = 160;   // of a device to another on its node
  double between_nodes_gbytes_s = 50;  // of a device to another node
};

// Equal nodes of equal devices; device d is on node d / devices_per_node.
placement_topology even_topology(uint32_t nodes, uint32_t devices_per_node, uint32_t slots);

}  // namespace troupe
