// The stages of a layer, as schedules order them and timelines name them.
//
// A layer of a micro-batch is attention (one stage, or two), dispatch, shared expert, routed experts and
// combine. What crosses the wire is not a stage of a device; see docs/schedules.md for the picture.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace troupe {

enum class stage_kind : uint8_t {
  attn,    // combine of the layer before, then attention up to the gate
  attn_0,  // its first half: combine, norm, projections, KV write
  attn_1,  // its second half: core attention, output projection, gate
  shared,  // the shared expert
  mlp,     // routed experts: one grouped launch
  head,    // combine of the last layer, logits, sampling
};
constexpr size_t stage_kind_count = 6;
constexpr size_t index_of(stage_kind kind) { return static_cast<size_t>(kind); }

// "ATTN", "ATTN-0", "ATTN-1", "SHARED", "MLP", "HEAD": as the published profile names them.
std::string_view name(stage_kind kind);

// Which kind of ready stage a device takes first: the lowest rank; equal ranks in order of arrival.
using stage_ranks = std::array<uint8_t, stage_kind_count>;
// Attention first, so that the rows of several shards meet in the experts' queue.
constexpr stage_ranks default_ranks{0, 0, 0, 1, 2, 0};

// What a device ran or is to run, and what made it ready. Times in ns of the node's clock (steady, or
// virtual).
struct stage_label {
  stage_kind kind{};
  uint16_t slot = 0;         // endpoint slot of the shard
  uint32_t micro_batch = 0;  // of that shard
  uint32_t layer = 0;
  uint64_t step = 0;           // of that shard
  uint32_t rows = 0;           // rows, or for `mlp` (row, expert) pairs
  uint32_t weight_passes = 0;  // mlp only: experts whose weights are read
  // The message that made it ready: when it was sent and delivered. Equal when the cause is local.
  uint64_t sent_ns = 0;
  uint64_t ready_ns = 0;
  bool opens_step = false;  // the first stage of a step: before it was ready there was no work
};

// When a stage ran, ns of the node's clock.
struct stage_time {
  uint64_t begin_ns = 0;
  uint64_t end_ns = 0;
  uint64_t duration_ns() const { return end_ns - begin_ns; }
};

}  // namespace troupe
