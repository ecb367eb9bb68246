// The order in which a device takes tasks; shared by the implementations, not thread-safe itself.
//
// Rows of the device's own shards are there before those that travel. Experts whose rows are still expected from
// other shards (`gathering`) go behind every stage that is ready, whatever the schedule prefers, so that their
// weights are not read for a part of the rows. When nothing else is ready they are held back for a while, and
// then run all the same.
// Of several waiting layers those with nothing more to expect go first, then the one with rows from most shards,
// then the one with the lowest shard's: every device decides alike, so shards that are out of step drift until they
// meet, and from then on their rows are computed together.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "runtime/device/device.hpp"
#include "runtime/device/gathering.hpp"

namespace troupe {

class device_queue {
 public:
  explicit device_queue(const stage_ranks& ranks) : ranks_(ranks) {}

  void push(stage_task& task);
  // Returns whether `take` may now have something new to say: not before the last task of a dispatch, and where it held
  // the layer back, which `held_until_ns` ends, not before the rows that it expects are there.
  bool push(const expert_task& task);
  bool empty() const { return waiting_ == 0 && experts_.empty(); }
  void clear();

  // The next stage, or null and `group` filled with all waiting expert tasks of one layer, ordered by expert and
  // then by arrival; or null and nothing, when there is nothing to run before `held_until_ns`.
  // `pass_ns`: what reading one expert's weights takes.
  stage_task* take(uint64_t now_ns, uint64_t pass_ns, std::vector<expert_task>& group);

  // When to call `take` again though nothing was pushed; 0: no need.
  uint64_t held_until_ns() const { return held_until_ns_; }

 private:
  // A layer that has expert tasks, and whose they are.
  struct waiting_layer {
    uint32_t layer = 0;
    std::vector<row_stream> streams;
    uint32_t shards = 0;  // among `streams`
    uint32_t lowest_shard = 0;
    uint32_t experts = 0;  // of the dispatch that asks most
    bool all_there = true;
    bool goes_before(const waiting_layer& other) const;
  };

  void look_at_layers();
  void note(waiting_layer& at, const dispatch_work& work) const;
  const waiting_layer* best_layer() const;
  const waiting_layer* held_for_long(uint64_t now_ns, uint64_t pass_ns);
  void take_layer(const waiting_layer& taken, std::vector<expert_task>& group);

  const stage_ranks ranks_;
  std::array<std::deque<stage_task*>, stage_kind_count> stages_;  // by rank
  size_t waiting_ = 0;                                            // stages
  std::deque<expert_task> experts_;
  gathering gathering_;
  std::vector<uint64_t> held_since_ns_;  // by layer; 0: not held
  uint64_t held_until_ns_ = 0;
  std::vector<waiting_layer> layers_;  // working list, reused
  size_t layers_used_ = 0;
};

}  // namespace troupe
