// How experts are moved while the cluster serves (docs/policies.md, "While serving").
//
// Part of `serving_settings`: the head reads it from the `rebalance` map of its YAML and hands it to every node.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/error.hpp"

namespace troupe {

struct rebalance_settings {
  std::string policy = "none";  // as `troupe place` names them; none: experts stay where they are
  uint32_t window_ms = 1000;    // of load; the policy sees the newest `windows`
  uint32_t windows = 8;
  double decay = 0.5;                 // weight of a window relative to the next newer one
  uint32_t period_ms = 30'000;        // the policy is asked so often; 0: by imbalance only
  double imbalance = 0;               // of the fullest node over the mean, at which it is asked at once; 0: never
  int32_t redundant_per_layer = -1;   // replicas of a layer beyond one of each expert; -1: as redundant_replicas gives
  uint32_t staging_replicas = 4;      // that a node holds beyond its slots while experts move
  double bandwidth_mb_s = 100;        // of weights that a node takes in
  double move_mb_max = 0;             // that a plan may load; 0: no limit
  uint32_t move_timeout_ms = 30'000;  // after which a replica that does not come is given up
  uint32_t policy_timeout_ms = 10'000;  // of a policy program
  bool by_source = true;                // the load tells the shards apart that rows come from
  bool co_activation = false;           // and which experts one token chose together

  bool operator==(const rebalance_settings&) const = default;
};

// Ranges; the sentence names the field. Whether the policy exists is checked where it is made.
result<void> validate(const rebalance_settings& settings);

std::string to_json(const rebalance_settings& settings);
// Fails: malformed.
result<rebalance_settings> parse_rebalance_settings(const std::string& json);

}  // namespace troupe
