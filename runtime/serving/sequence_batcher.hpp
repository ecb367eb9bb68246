// Which rows go into a shard's next micro-batch: continuous batching with chunked prefill.
//
// Decisions only, no actors: the shard asks `pick` when a micro-batch is idle and reports what it
// sampled through `finish`. A decoding sequence is in at most one micro-batch at a time; the parts of a
// prompt may be in several, and then each follows the one before it layer by layer. KV for the whole of
// prompt and completion is taken when a sequence is admitted, so that an admitted sequence never
// stalls for memory; others wait in order of arrival. Owned by one shard's actor.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/error.hpp"
#include "runtime/ids.hpp"
#include "runtime/model/kv_cache.hpp"

namespace troupe {

struct sequence {
  enum class state : uint8_t { waiting, prefill, placing, decoding };

  request_id request;
  uint32_t attempt = 0;
  uint64_t arrival = 0;         // order of admission
  std::vector<int32_t> tokens;  // prompt and completion so far
  uint32_t prompt_tokens = 0;
  uint32_t max_tokens = 0;  // of the completion
  uint64_t seed = 0;
  float temperature = 0;
  float top_p = 1;
  bool ignore_eos = false;

  state phase = state::waiting;
  uint32_t computed = 0;        // positions whose KV is in the cache
  uint32_t taken = 0;           // positions that are computed or in a running micro-batch
  uint32_t in_flight = 0;       // running micro-batches that it has rows in
  uint32_t last_part = 0;       // the micro-batch that holds the newest of them
  bool cancelled = false;       // to be dropped when its micro-batches end
  std::vector<int32_t> blocks;  // KV blocks, one for each aligned run of positions

  uint32_t completion_tokens() const { return static_cast<uint32_t>(tokens.size()) - prompt_tokens; }
};

struct batch_row {
  sequence* owner = nullptr;
  int32_t token = 0;
  int32_t position = 0;
  bool samples = false;  // the row whose logits give the sequence's next token
};

struct batcher_options {
  uint32_t rows_max = 256;
  uint32_t chunk = 128;
  uint32_t micro_batches = 2;
  uint32_t sequences_max = 256;
};

class sequence_batcher {
 public:
  // Requires: `cache` outlives this.
  sequence_batcher(batcher_options options, kv_cache& cache);

  // Takes a sequence into the queue (replacing an older attempt of the same request).
  // Fails: exhausted (too many sequences), invalid_argument (longer than the whole cache).
  result<void> add(std::unique_ptr<sequence> added);

  // Drops a request's sequence now, or when its micro-batch ends. Returns false when it is not here.
  bool cancel(request_id request, uint32_t attempt);

  // Fills `rows` for an idle micro-batch, sequence by sequence and position by position; returns false
  // when nothing is ready. Decoding sequences go first, evenly shared out between the micro-batches, then
  // prompts in order of arrival, so that each micro-batch has an equal part of the attention work that they have
  // still ahead; a prompt may be split. `ahead`: of each micro-batch, the part of its layers that it has still to
  // run, 0 to 1; 0 of an idle one. `follows` gets the running micro-batches that hold the part before one of these.
  bool pick(uint32_t micro_batch, std::span<const double> ahead, std::vector<batch_row>& rows,
            std::vector<uint32_t>& follows);

  // How many micro-batches share what there is from the next `pick` on.
  void share_between(uint32_t micro_batches) { options_.micro_batches = micro_batches; }

  // Rows that are ready or running: decoding sequences, and prompt positions within reach of `chunk`.
  uint32_t decoding_rows() const;
  uint32_t prompt_rows() const;

  // Ends a micro-batch: positions count as computed, `sampled` (one token for each sampling row, in
  // order) is appended. Cancelled sequences are dropped. The callback hears of every sampled token
  // while the sequence exists; it returns true when the sequence is finished and leaves.
  template <class OnToken>
  void finish(const std::vector<batch_row>& rows, OnToken&& on_token);

  // A prefilled sequence may decode here. Returns false when it is not here any more.
  bool start_decoding(request_id request, uint32_t attempt);

  sequence* find(request_id request, uint32_t attempt);
  size_t size() const { return sequences_.size(); }

  // Attention work of the row at a position, in rows without context: cores read `position` keys, and the
  // rest of a row costs about as much as reading this many.
  static constexpr uint64_t row_work = 512;
  static uint64_t work_of(uint64_t begin, uint64_t end);
  // A smaller part of a prompt is not worth a micro-batch of its own.
  static constexpr uint32_t part_rows_min = 16;
  // Nor is a smaller one worth waiting for a micro-batch that is running.
  static constexpr uint32_t late_part_rows_min = 64;

 private:
  void pick_decoding(std::vector<batch_row>& rows);
  void pick_prompts(uint32_t micro_batch, std::span<const double> ahead, std::vector<batch_row>& rows,
                    std::vector<uint32_t>& follows);
  void admit();
  void drop(sequence& dropped);

  batcher_options options_;
  kv_cache& cache_;
  std::vector<uint64_t> prompt_work_;  // by micro-batch, of what it picked last
  uint64_t arrivals_ = 0;
  std::map<uint64_t, std::unique_ptr<sequence>> sequences_;  // by arrival
  std::map<request_id, uint64_t> by_request_;
};

template <class OnToken>
void sequence_batcher::finish(const std::vector<batch_row>& rows, OnToken&& on_token) {
  size_t sampled = 0;
  for (const auto& row : rows) {
    sequence& owner = *row.owner;
    owner.computed = std::max(owner.computed, static_cast<uint32_t>(row.position) + 1);
    if (!row.samples) continue;
    const size_t index = sampled++;
    if (owner.cancelled) continue;
    const bool was_prefill = owner.phase == sequence::state::prefill;
    if (was_prefill) owner.phase = sequence::state::placing;
    if (on_token(owner, index, was_prefill)) owner.cancelled = true;
  }
  const sequence* last = nullptr;
  for (const auto& row : rows) {
    if (row.owner == last) continue;
    last = row.owner;
    if (--row.owner->in_flight == 0 && row.owner->cancelled) drop(*row.owner);
  }
  admit();
}

}  // namespace troupe
