// What placement optimises, and the bound that no placement can pass.
//
// The objective is DeepSeek's: rows that a device receives in dispatch. Balance is their mean over their
// maximum, 1 at best, for each layer. Rows of an expert are taken to be shared evenly by its replicas
// unless shares are given (replica_selection.hpp). Pure functions, any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/placement/expert_map.hpp"
#include "runtime/placement/topology.hpp"

namespace troupe {

struct placement_objective {
  double balance_mean = 0;   // over layers
  double balance_worst = 0;  // the worst layer's
  uint32_t worst_layer = 0;
};

// Rows of each device, [layers, devices], double. `rows` is [layers, experts]; `shares`, parallel to
// `map.devices`, is the part of an expert's rows that each replica serves (empty: even).
std::vector<double> device_rows(const expert_map& map, std::span<const double> rows, size_t devices,
                                std::span<const float> shares = {});

// Mean over maximum of one layer's device rows, over the devices with `slots` > 0; 1 when nothing was sent.
double balance_of(std::span<const double> layer_rows, std::span<const uint32_t> slots);

// Requires: `rows` of the map's shape; `slots` has an entry for each device.
placement_objective objective_of(const expert_map& map, std::span<const double> rows, std::span<const uint32_t> slots,
                                 std::span<const float> shares = {});

// The best balance that any map could reach in a layer, from what no map can escape: an expert needs
// rows / maximum replicas, of which the slots allow so many; and, where replicas share evenly, a device holds
// fewer than k replicas that are larger than a k-th of the maximum. Shape of `layer_rows`: [experts].
enum class row_shares { even, any };
double balance_bound(std::span<const double> layer_rows, std::span<const uint32_t> slots, row_shares shares);

}  // namespace troupe
