// The interface of placement: `place(load_history, topology, liveness, current, limits) -> plan`.
//
// A policy is a pure function from what is known to a map and a sentence. `place` runs one, validates
// what it answers, and adds what every plan has: the ordered moves and the objective before and after.
// A plan that is refused changes nothing; the current map stays in force. Thread: any.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "runtime/error.hpp"
#include "runtime/placement/expert_map.hpp"
#include "runtime/placement/load.hpp"
#include "runtime/placement/objective.hpp"
#include "runtime/placement/topology.hpp"

namespace troupe {

struct placement_limits {
  uint64_t expert_bytes = 44'040'192;  // weights of one expert; 3 matrices 7168 x 2048 in FP8
  uint64_t move_bytes_max = std::numeric_limits<uint64_t>::max();  // that a plan may load
  uint32_t expert_groups = 1;   // routing groups of a layer; experts of a group follow each other
  uint32_t rows_per_token = 8;  // experts that a token chooses in a layer
  double decay = 0;             // weight of a window relative to the next newer one; 0: the newest alone
};

// Which devices serve; empty: all.
struct placement_liveness {
  std::vector<bool> live;

  bool operator()(size_t device) const { return live.empty() || live[device]; }
};

struct placement_input {
  const load_history& load;
  const placement_topology& topology;
  const placement_liveness& liveness;
  const expert_map* current = nullptr;  // null at the start
  const placement_limits& limits;
};

struct placement_proposal {
  expert_map map;
  std::string reason;  // a sentence
};

// Thread: any; pure. Fails: with a sentence.
using placement_policy = std::function<result<placement_proposal>(const placement_input&)>;

// Load a replica, then serve from it.
struct expert_move {
  static constexpr int32_t from_checkpoint = -1;
  uint32_t layer = 0;
  uint32_t expert = 0;
  int32_t from = from_checkpoint;  // device of a live replica, on the same node where there is one
  uint16_t to = 0;
  uint64_t bytes = 0;
};

struct expert_drop {
  uint32_t layer = 0;
  uint32_t expert = 0;
  uint16_t device = 0;
};

struct placement_plan {
  expert_map map;
  // Layers that gain most come first. All moves of a layer precede its drops, so that no expert is ever
  // without a replica; a device then holds at most `staging_replicas_max` more than its slots.
  std::vector<expert_move> moves;
  std::vector<expert_drop> drops;
  uint32_t staging_replicas_max = 0;
  uint64_t move_bytes = 0;
  double move_seconds = 0;  // at least, over the busiest device's links; what comes from checkpoints counts as remote
  placement_objective before;  // of the current map; zero when there is none
  placement_objective after;
  std::string reason;
};

// Fails: invalid_argument when the input contradicts itself, when the policy fails, or when its map
// breaks a limit; the sentence names layer and expert.
result<placement_plan> place(const placement_policy& policy, const placement_input& input);

// Checks what a policy may rely on: shapes of load and current map, known nodes, enough slots.
result<void> validate(const placement_input& input);
// Checks a map: each expert placed, on live devices that exist, within the slots and memory of each device
// and node. The sentence names layer and expert.
result<void> validate(const expert_map& map, const placement_input& input);

// Replicas of one layer that a device may hold: its slots, fewer where memory is short; 0 when dead.
std::vector<uint32_t> usable_slots(const placement_input& input);

// Fills moves, drops, bytes and order of a plan from the difference between two maps. Moves are differences
// of device sets, so that reordering slots costs nothing.
void add_moves(placement_plan& plan, const placement_input& input);

}  // namespace troupe
