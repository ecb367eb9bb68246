// The order in which a device takes tasks; shared by the implementations, not thread-safe itself.
//
// Rows of the device's own shards are there before those that travel. Experts whose rows are still expected from
// other shards (`gathering`) go behind every stage that is ready, whatever the schedule prefers, so that their
// weights are not read for a part of the rows. When nothing else is ready they are held back for a while, and
// then run all the same.
// A launch takes all waiting rows of a layer. But where a schedule has attention before experts, the next micro-batch's
// rows of the device's own shards are there each time and the others' are not: there micro-batches of many rows are
// launched one by one, so that the answers to the first travel while the second is computed.
// Of several that wait those with nothing more to expect go first, then those with rows from most shards, then the
// ones with the lowest shard's: every device decides alike, so shards that are out of step drift until they meet, and
// from then on their rows are computed together.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "runtime/device/device.hpp"
#include "runtime/device/gathering.hpp"

namespace troupe {

class device_queue {
 public:
  // The head's rank is that of attention, whole or split; the rank of a kind that a schedule does not have says
  // nothing.
  explicit device_queue(const stage_ranks& ranks)
      : ranks_(ranks), apart_(ranks[index_of(stage_kind::head)] < ranks[index_of(stage_kind::mlp)]) {}

  void push(stage_task& task);
  // Returns whether `take` may now have something new to say: not before the last task of a dispatch, and where it held
  // the layer back, which `held_until_ns` ends, not before the rows that it expects are there.
  bool push(const expert_task& task);
  bool empty() const { return waiting_ == 0 && experts_.empty(); }
  void clear();

  // The next stage, or null and `group` filled with the expert tasks of one launch, ordered by expert and then by
  // arrival; or null and nothing, when there is nothing to run before `held_until_ns`.
  // `pass_ns`: what reading one expert's weights takes.
  stage_task* take(uint64_t now_ns, uint64_t pass_ns, std::vector<expert_task>& group);

  // When to call `take` again though nothing was pushed; 0: no need.
  uint64_t held_until_ns() const { return held_until_ns_; }

 private:
  // The rows that wait for one layer, with `apart_` those of one micro-batch number, and whose they are.
  struct waiting_group {
    uint32_t layer = 0;
    std::optional<uint32_t> micro_batch;
    std::vector<row_stream> streams;
    uint32_t shards = 0;  // among `streams`
    uint32_t lowest_shard = 0;
    uint32_t experts = 0;  // of the dispatch that asks most
    uint64_t rows = 0;     // (row, expert) pairs
    bool all_there = true;
    bool goes_before(const waiting_group& other) const;
  };
  struct held_group {
    uint32_t layer = 0;
    std::optional<uint32_t> micro_batch;
    uint64_t since_ns = 0;
  };

  std::span<waiting_group> groups() { return {groups_.data(), groups_used_}; }
  void look_at_groups();
  void note(waiting_group& at, const dispatch_work& work) const;
  waiting_group* best_group();
  waiting_group* held_for_long(uint64_t now_ns, uint64_t pass_ns);
  std::vector<held_group>::iterator find_held(uint32_t layer, std::optional<uint32_t> micro_batch);
  std::optional<uint32_t> micro_batch_of(const expert_task& task) const;
  void forget_held(const waiting_group& taken);
  void take_more(waiting_group& taken);
  void take_group(const waiting_group& taken, std::vector<expert_task>& group);

  const stage_ranks ranks_;
  const bool apart_;                                              // micro-batches of many rows are launched one by one
  std::array<std::deque<stage_task*>, stage_kind_count> stages_;  // by rank
  size_t waiting_ = 0;                                            // stages
  std::deque<expert_task> experts_;
  gathering gathering_;
  std::vector<held_group> held_;
  uint64_t held_until_ns_ = 0;
  std::vector<waiting_group> groups_;  // working list, reused
  size_t groups_used_ = 0;
};

}  // namespace troupe
