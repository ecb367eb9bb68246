// What a shard has asked of which expert host, and what is still owed.
//
// `replica_router` says which node serves a (layer, expert) under the current view. `dispatch_ledger`
// groups owed pairs into one dispatch for each destination node, keeps each until it is answered or
// its micro-batch has moved on, and finds those whose node is gone or silent. Decisions only: the
// shard's actor sends. Owned by one actor; entries are reused, so a steady state allocates nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/placement/placement.hpp"
#include "runtime/placement/replica_selection.hpp"
#include "runtime/serving/shard_step.hpp"

namespace troupe {

// A node and its incarnation as a view names them.
struct live_node {
  uint16_t node = 0;
  uint32_t incarnation = 0;
};

// Tells the rows of a shard apart when a replica is chosen: the same row asks the same replica again.
uint64_t row_key(request_id request, int32_t position, uint32_t layer, uint32_t expert);

// Which replica serves a row, among the live ones.
class replica_router {
 public:
  void update(const placement_table& placement, std::span<const live_node> live, uint16_t own_node,
              replica_selection selection);

  // The node that serves, or nothing when no replica is live. `key`: see `row_key`.
  std::optional<uint16_t> serves(uint32_t layer, uint32_t expert, uint64_t key) const;
  // Another live replica than `but`, or nothing.
  std::optional<uint16_t> alternative(uint32_t layer, uint32_t expert, uint16_t but) const;
  // Whether a live node holds a replica.
  bool holds(uint32_t layer, uint32_t expert, uint16_t node) const;
  // The incarnation of a live node, or nothing.
  std::optional<uint32_t> incarnation(uint16_t node) const;

 private:
  std::span<const uint16_t> candidates(uint32_t layer, uint32_t expert) const;

  replica_selection selection_ = replica_selection::first;
  placement_topology topology_;  // a device a node
  uint16_t own_node_ = 0;
  uint32_t experts_ = 0;
  std::vector<live_node> live_;
  // Live replicas of entry layer * experts + expert: nodes_[offsets_[entry] .. offsets_[entry + 1]).
  std::vector<uint32_t> offsets_;
  std::vector<uint16_t> nodes_;
  std::vector<float> shares_;  // parallel to `nodes_`
};

using steady_time = std::chrono::steady_clock::time_point;

struct outstanding_dispatch {
  uint32_t id = 0;          // 0: entry is free
  uint32_t step_index = 0;  // which of the shard's micro-batches
  uint64_t step_number = 0;
  uint32_t layer = 0;
  live_node to;
  uint32_t attempt = 0;
  uint64_t epoch = 0;  // it was sent under
  bool sent = false;
  bool repeated = false;  // its deadline passed and its pairs were sent elsewhere too
  uint64_t bytes = 0;     // of the message, when sent
  steady_time since;      // sent, or created
  std::vector<owed_pair> pairs;
};

class dispatch_ledger {
 public:
  // Groups `pairs` by destination; `keys` are theirs, in the same order. `avoid` excludes a node (a retry after it
  // failed); pairs that no live replica can serve are appended to `stranded`.
  void open(uint32_t step_index, uint64_t step_number, uint32_t layer, std::span<const owed_pair> pairs,
            std::span<const uint64_t> keys, const replica_router& router, std::optional<uint16_t> avoid,
            uint32_t attempt, steady_time now, std::vector<owed_pair>& stranded);

  // The entry of an answer, or null (late, repeated, or not ours).
  outstanding_dispatch* find(uint32_t id);
  void close(outstanding_dispatch& entry);
  // Drops whatever a micro-batch still waits for; its answers will be late.
  void close_step(uint32_t step_index);

  std::vector<outstanding_dispatch>& entries() { return entries_; }
  // The oldest epoch that an unanswered dispatch was sent under, but not above `current`.
  uint64_t oldest_epoch(uint64_t current) const;
  uint64_t sent_count() const { return sent_; }
  uint64_t resent_count() const { return resent_; }
  void count_sent(const outstanding_dispatch& entry) {
    ++sent_;
    if (entry.attempt > 0) ++resent_;
  }

 private:
  outstanding_dispatch& fresh();

  std::vector<outstanding_dispatch> entries_;
  std::vector<std::vector<owed_pair>> by_node_;
  uint32_t next_id_ = 1;
  uint64_t sent_ = 0;
  uint64_t resent_ = 0;
};

}  // namespace troupe
