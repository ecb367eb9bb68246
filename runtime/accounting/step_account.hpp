// Where the time of a node's steps goes: what its device ran, what it waited for, and what travelled.
//
// Owned by a device. The device records what it runs, the actors record what the wire delivered to them;
// any thread may do either, the lock is held for a few additions. Counters go to metrics and tables;
// with a `timeline` attached every event goes there too. Times are ns of the node's clock.
//
// A device that was idle before a task says why:
//   exposed    the message that made the task ready was travelling: wire time that nothing hid
//   bubble     nothing was under way for the task: other nodes were still computing
//   mailbox    the message was there, its actor or the device had not taken it up
//   idle       no step was under way
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/device/stage.hpp"
#include "runtime/memory/short_lock.hpp"
#include "runtime/wire/micro_batch.hpp"

namespace troupe {

class timeline;

// Sums of one layer.
struct layer_account {
  std::array<uint64_t, stage_kind_count> compute_ns{};  // by stage
  std::array<uint64_t, stage_kind_count> stages{};      // how many ran; of `mlp`: grouped launches
  uint64_t rows = 0;                                    // through attention
  uint64_t expert_rows = 0;                             // (row, expert) products
  uint64_t weight_passes = 0;                           // experts whose weights were read
  uint64_t messages = 0;                                // delivered here: dispatches and combines
  uint64_t wire_bytes = 0;                              // their payloads and headers
  uint64_t wire_ns = 0;                                 // sum of their times from send to delivery
  uint64_t exposed_ns = 0;
  uint64_t bubble_ns = 0;
  uint64_t mailbox_ns = 0;
  uint64_t idle_ns = 0;

  // For messages: the fields in their order.
  static constexpr size_t word_count = 2 * stage_kind_count + 10;
  std::array<uint64_t, word_count> words() const;
  static layer_account from_words(std::span<const uint64_t, word_count> words);

  // Time in which there was work: all but `idle_ns`.
  uint64_t active_ns() const { return busy_ns() + exposed_ns + bubble_ns + mailbox_ns; }
  void add(const layer_account& other);
  uint64_t busy_ns() const;
};

class step_account {
 public:
  // Requires: `to` outlives this or is detached with null.
  void attach(timeline* to);

  // The device ran a stage. Called by the device in order of time.
  void ran(const stage_label& what, const stage_time& when);
  // A dispatch or combine was delivered to an actor of `node`.
  void delivered(const micro_batch& message, uint16_t node);

  std::vector<layer_account> layers() const;  // by layer; shorter than the model if later ones did not run
  layer_account total() const;

 private:
  layer_account& layer(uint32_t index);

  mutable short_lock lock_;
  std::vector<layer_account> layers_;
  uint64_t last_end_ns_ = 0;
  timeline* timeline_ = nullptr;
};

}  // namespace troupe
