// What the cluster looks like, for people: written by the coordinator and the API server, read by
// `/cluster`, `/metrics` and the start table. The lock is held for a copy only.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "actors/messages.hpp"
#include "runtime/serving/settings.hpp"

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

struct board_snapshot {
  uint64_t epoch = 0;
  bool serving = false;
  uint64_t nodes_lost = 0;
  std::vector<board_node> nodes;
  board_requests requests;
  serving_settings settings;
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
