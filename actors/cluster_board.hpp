// What the cluster looks like, for people: written by the coordinator and the API server, read by
// `/cluster`, `/metrics` and the start table. The lock is held for a copy only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "actors/messages.hpp"
#include "runtime/serving/settings.hpp"
#include "runtime/serving/shard_load.hpp"

namespace troupe {

struct board_node {
  uint16_t node = 0;
  std::string state;  // "waiting", "loading", "live", "dead"
  uint32_t incarnation = 0;
  std::string host;
  uint64_t process = 0;
  std::string device;
  uint32_t threads = 0;
  uint32_t shards = 0;
  uint32_t experts = 0;
  uint64_t weight_bytes = 0;
  uint64_t kv_bytes = 0;
  node_counters counters;
  std::string schedule;               // what its first shard's schedule uses and why
  std::vector<layer_account> layers;  // where the time of its steps went
};

struct board_requests {
  uint64_t accepted = 0;
  uint64_t completed = 0;
  uint64_t cancelled = 0;
  uint64_t failed = 0;
  uint64_t resumed = 0;  // moved to another shard after a failure
  uint64_t running = 0;
  uint64_t prompt_tokens = 0;
  uint64_t completion_tokens = 0;
};

// What the prefill or the decode balancer does.
struct board_balance {
  uint64_t choices = 0;
  uint64_t shards = 0;
  shard_imbalance imbalance;  // now
};

// What the expert balancer does and has done.
struct board_rebalance {
  std::string policy;
  uint64_t checks = 0;         // times it looked after its work: grows while it lives
  uint64_t idle_ms = 0;        // since it last asked the policy, ordered something or heard of it
  bool asking = false;         // the policy has not answered yet
  uint64_t questions = 0;      // put to the policy
  uint64_t plans = 0;          // that it gave and that are valid
  uint64_t plans_refused = 0;  // failures and bad maps
  uint64_t moves_left = 0;     // replicas still to load
  uint64_t moves_done = 0;
  uint64_t moves_failed = 0;
  uint64_t moves_superseded = 0;  // given up since another plan came
  uint64_t bytes_moved = 0;
  double imbalance = 0;       // fullest node over the mean one, mean over layers, now
  double balance_before = 0;  // of the last plan: mean over maximum, mean over layers
  double balance_after = 0;
  std::string last_reason;   // why the policy was asked last
  std::string last_plan;     // the plan's own sentence
  std::string last_failure;  // the last sentence about what went wrong
};

// The load as it was counted, the newest window last; MoE layers only.
struct recorded_load {
  uint32_t layers = 0;
  uint32_t experts = 0;
  uint32_t sources = 0;
  std::vector<std::shared_ptr<const load_window>> windows;

  load_history history() const {
    load_history copy{layers, experts, sources, {}};
    for (const auto& window : windows) copy.windows.push_back(*window);
    return copy;
  }
};

struct board_snapshot {
  uint64_t epoch = 0;
  bool serving = false;
  uint64_t nodes_lost = 0;
  std::vector<board_node> nodes;
  board_requests requests;
  serving_settings settings;
  board_rebalance rebalance;
  board_balance prefill;
  board_balance decode;
  std::shared_ptr<const placement_table> placement;  // of the epoch in force
  std::shared_ptr<const recorded_load> load;         // null before the first window has ended
};

class cluster_board {
 public:
  board_snapshot read() const {
    const std::lock_guard lock(mutex_);
    return snapshot_;
  }
  template <class Change>
  void write(Change&& change) {
    const std::lock_guard lock(mutex_);
    change(snapshot_);
  }

 private:
  mutable std::mutex mutex_;
  board_snapshot snapshot_;
};

}  // namespace troupe
