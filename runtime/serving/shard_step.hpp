// One micro-batch's way through the layers: its rows, its stages, and which expert outputs are missing.
//
// The attention shard owns a fixed number of these and lets them take turns. A stage runs on the
// device; between stages the shard's actor groups the layer's (row, expert) pairs by destination,
// sends dispatches and files the answers here. Attention is one stage or two, as the schedule says.
// When a prompt is split between micro-batches, the later part's attention of a layer waits until the
// earlier part has written its keys of that layer. The first valid answer for a pair counts and later ones
// are ignored, so a dispatch may be repeated at any time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/device/device.hpp"
#include "runtime/model/forward.hpp"
#include "runtime/serving/sequence_batcher.hpp"

namespace troupe {

// A (row, expert) product of the current layer that some expert owes.
struct owed_pair {
  uint16_t row = 0;     // of the micro-batch
  uint16_t k_slot = 0;  // place in the row's top-k list
  uint16_t expert = 0;
};

class shard_step {
 public:
  // Micro-batch `index` of the shard at endpoint `slot`. `completed` is called on the device's thread when
  // a stage has run; it only sends a message. What follows a stage in any case (the shared expert behind a
  // gate, the second half of attention) goes to `compute` at once, so that the device need not wait for
  // the actor. Requires: `forward` and `cache` outlive this.
  shard_step(const forward_pass& forward, kv_cache& cache, int rows_max, uint16_t slot, uint32_t index,
             std::shared_ptr<device> compute, std::function<void(stage_kind)> completed);
  shard_step(const shard_step&) = delete;
  shard_step& operator=(const shard_step&) = delete;

  bool idle() const { return rows_.empty(); }
  uint64_t number() const { return number_; }
  int layer() const { return layer_; }
  const std::vector<batch_row>& batch() const { return rows_; }
  std::vector<batch_row>& mutable_batch() { return rows_; }  // only while idle
  const micro_batch_rows& rows() const { return workspace_; }
  // At a gate: the experts that each row chose, [rows, top_k], highest gate first.
  std::span<const kernels::routed_expert> routes() const { return {workspace_.routes.data(), rows_.size() * top_k()}; }
  size_t top_k() const { return static_cast<size_t>(forward_.config().num_experts_per_tok); }

  // Starts a step with the rows in `mutable_batch()`; submit `next()` next. `ready_ns`: when they were
  // there to be computed.
  // `alone`: no other micro-batch holds earlier positions of its sequences.
  void begin(uint64_t number, bool split_attention, bool alone, uint64_t ready_ns);
  // Ends it: the batch is empty and idle again.
  void end();

  // The stage of the attention side that follows: attention whole or in halves, or the head.
  stage_task& next() { return attention_; }
  // The actor has heard that it ended.
  void shared_done();

  // After an attention stage: whether the step is through (then `sampled` holds one token a sampling
  // row), or stands at a MoE layer's gate; if neither, `next()` follows at once.
  bool through() const { return place_ == place::through; }
  bool at_gate() const { return place_ == place::gate; }
  std::span<const kernels::sampled_token> sampled() const { return {sampled_.data(), sampling_rows_.size()}; }

  // The newest layer whose keys are all in the cache; -1 before the first.
  int written_layer() const { return written_layer_; }
  // The part of its layers and head that it has still to run; 0 only while idle.
  double ahead() const {
    return idle() ? 0 : 1 - (written_layer() + 1.0) / (forward_.config().num_hidden_layers + 1.0);
  }
  // The layer whose keys of earlier positions `next()` reads, or nothing when it reads none.
  std::optional<int> reads_layer() const;

  // At a gate: forgets the previous layer's answers and owes every pair of this one.
  void open_layer();
  // The pairs of this layer that nobody has answered, appended to `pairs`.
  void unanswered(std::vector<owed_pair>& pairs) const;
  bool answered(const owed_pair& pair) const { return workspace_.expert_outputs[index(pair)] != nullptr; }
  // Files the answer's output for a pair; false when it had one already.
  bool accept(const owed_pair& pair, const std::byte* output);
  // An answer came that the step waited for; `path_ns` is the least that its way there and back could
  // have taken: transfers on idle links and the host's compute.
  void answered_at(uint64_t sent_ns, uint64_t delivered_ns, uint64_t path_ns);
  // The longest chain of stages and transfers that this micro-batch has had to wait for since the start.
  uint64_t chain_ns() const { return chain_ns_.load(std::memory_order_relaxed); }
  // Keeps an answer's payload alive until the combine has run.
  void keep(buffer_ref payload) { answers_.push_back(std::move(payload)); }
  // Fills a pair that cannot be answered with zeros, so that the others' rows go on.
  void give_up(const owed_pair& pair);
  // Whether the combine may run; `close_layer` says that it will.
  bool complete() const { return missing_ == 0 && shared_ready_; }
  void close_layer() { lengthen_chain(layer_path_ns_); }

  // Writes the activations of `row` in `dtype`; of FP8 the codes to `out` and the tiles' FP32 scales to
  // `scales` [ceil(hidden/128)], which may be unaligned.
  void copy_activation(uint16_t row, wire_dtype dtype, std::byte* out, std::byte* scales) const;

 private:
  // Where the step stands between two stages.
  enum class place : uint8_t { start, halfway, dense_layer_done, gate, through };

  class attention_stage final : public stage_task {
   public:
    explicit attention_stage(shard_step& step) : step_(step) {}
    void run(worker_team& team) override { step_.run_attention(team); }
    void completed(const stage_time& when) override { step_.attention_ended(when); }
    task_cost cost() const override { return step_.attention_cost(); }
    stage_label label() const override { return step_.label_of(step_.attention_kind()); }

   private:
    shard_step& step_;
  };
  class shared_stage final : public stage_task {
   public:
    explicit shared_stage(shard_step& step) : step_(step) {}
    void run(worker_team& team) override { step_.forward_.shared_expert(step_.workspace_, step_.layer_, team); }
    void completed(const stage_time& when) override { step_.shared_ended(when); }
    task_cost cost() const override { return step_.shared_cost(); }
    stage_label label() const override { return step_.label_of(stage_kind::shared); }

   private:
    shard_step& step_;
  };

  size_t index(const owed_pair& pair) const {
    return size_t{pair.row} * static_cast<size_t>(forward_.config().num_experts_per_tok) + pair.k_slot;
  }
  bool goes_on_itself() const { return alone_ && (place_ == place::halfway || place_ == place::dense_layer_done); }
  void attention_ended(const stage_time& when);
  void shared_ended(const stage_time& when);
  void lengthen_chain(uint64_t ns) { chain_ns_.store(chain_ns() + ns, std::memory_order_relaxed); }
  stage_kind attention_kind() const;
  stage_label label_of(stage_kind kind) const;
  void run_attention(worker_team& team);
  void run_first_half(worker_team& team);
  void run_second_half(worker_team& team);
  void sample(worker_team& team);
  task_cost attention_cost() const;
  task_cost shared_cost() const;

  const forward_pass& forward_;
  kv_cache& cache_;
  const uint16_t slot_;
  const uint32_t index_;
  const std::shared_ptr<device> compute_;
  std::function<void(stage_kind)> completed_;
  micro_batch_rows workspace_;
  std::vector<batch_row> rows_;
  std::vector<int32_t> sampling_rows_;
  std::vector<kernels::sampled_token> sampled_;
  std::vector<buffer_ref> answers_;
  std::vector<std::byte> zeros_;
  attention_stage attention_{*this};
  shared_stage shared_{*this};
  uint64_t number_ = 0;
  bool split_attention_ = false;
  bool alone_ = true;
  place place_ = place::start;
  int layer_ = -1;                      // whose attention ran last or is halfway; -1 before the first
  std::atomic<int> written_layer_{-1};  // whose keys are in the cache; the actor reads it while the device writes
  size_t missing_ = 0;
  bool shared_ready_ = false;
  // What made the next stage ready, for accounting.
  uint64_t cause_sent_ns_ = 0;
  uint64_t cause_ready_ns_ = 0;
  stage_time attention_ran_;  // the newest
  stage_time shared_ran_;
  std::atomic<uint64_t> chain_ns_{0};  // written by actor and device in turns, read by the actor at any time
  uint64_t layer_path_ns_ = 0;         // the longest answer of this layer, or its shared expert
};

}  // namespace troupe
