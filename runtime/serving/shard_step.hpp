// One micro-batch's way through the layers: its rows, its stages, and which expert outputs are missing.
//
// The attention shard owns a fixed number of these and lets them take turns. A stage runs on the
// device; between stages the shard's actor groups the layer's (row, expert) pairs by destination,
// sends dispatches and files the answers here. The first valid answer for a pair counts and later ones
// are ignored, so a dispatch may be repeated at any time.
#pragma once

#include <cstdint>
#include <functional>
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
  // `completed` is called on the device's thread when a stage has run; it only sends a message.
  // Requires: `forward` and `cache` outlive this.
  shard_step(const forward_pass& forward, kv_cache& cache, int rows_max, std::function<void()> completed);
  shard_step(const shard_step&) = delete;
  shard_step& operator=(const shard_step&) = delete;

  bool idle() const { return rows_.empty(); }
  uint64_t number() const { return number_; }
  int layer() const { return layer_; }
  const std::vector<batch_row>& batch() const { return rows_; }
  std::vector<batch_row>& mutable_batch() { return rows_; }  // only while idle
  const micro_batch_rows& rows() const { return workspace_; }

  // Starts a step with the rows in `mutable_batch()`; submit `attend()` next.
  void begin(uint64_t number);
  // Ends it: the batch is empty and idle again.
  void end();

  // The combine of the previous MoE layer, then everything up to the next gate, or to the sampled tokens.
  stage_task& attend() { return attend_; }
  // The shared expert of the current layer.
  stage_task& shared() { return shared_; }
  // Which of the two ran last. Requires: one was submitted.
  bool attended() const { return running_ == &attend_; }
  // Marks a stage as submitted; a step has one running at a time.
  void running(stage_task& stage) { running_ = &stage; }
  void shared_done() { shared_ready_ = true; }

  // After `attend`: whether the step is through (then `sampled` holds one token a sampling row) or
  // stands at a MoE layer's gate.
  bool through() const { return layer_ >= forward_.config().num_hidden_layers; }
  std::span<const kernels::sampled_token> sampled() const { return {sampled_.data(), sampling_rows_.size()}; }

  // At a gate: forgets the previous layer's answers and owes every pair of this one.
  void open_layer();
  // The pairs of this layer that nobody has answered, appended to `pairs`.
  void unanswered(std::vector<owed_pair>& pairs) const;
  bool answered(const owed_pair& pair) const { return workspace_.expert_outputs[index(pair)] != nullptr; }
  // Files the answer's output `position` for a pair; false when it had one already.
  bool accept(const owed_pair& pair, const std::byte* output);
  // Keeps an answer's payload alive until the combine has run.
  void keep(buffer_ref payload) { answers_.push_back(std::move(payload)); }
  // Fills a pair that cannot be answered with zeros, so that the others' rows go on.
  void give_up(const owed_pair& pair);
  // Whether the combine may run.
  bool complete() const { return missing_ == 0 && shared_ready_; }

  // Writes the activations of `row` in `dtype`.
  void copy_activation(uint16_t row, wire_dtype dtype, std::byte* out) const;

 private:
  class attend_stage final : public stage_task {
   public:
    explicit attend_stage(shard_step& step) : step_(step) {}
    void run(worker_team& team) override { step_.run_attend(team); }
    void completed() override { step_.completed_(); }
    task_cost cost() const override { return step_.attend_cost(); }

   private:
    shard_step& step_;
  };
  class shared_stage final : public stage_task {
   public:
    explicit shared_stage(shard_step& step) : step_(step) {}
    void run(worker_team& team) override { step_.forward_.shared_expert(step_.workspace_, step_.layer_, team); }
    void completed() override { step_.completed_(); }
    task_cost cost() const override { return step_.shared_cost(); }

   private:
    shard_step& step_;
  };

  size_t index(const owed_pair& pair) const {
    return size_t{pair.row} * static_cast<size_t>(forward_.config().num_experts_per_tok) + pair.k_slot;
  }
  void run_attend(worker_team& team);
  void sample(worker_team& team);
  task_cost attend_cost() const;
  task_cost shared_cost() const;

  const forward_pass& forward_;
  kv_cache& cache_;
  std::function<void()> completed_;
  micro_batch_rows workspace_;
  std::vector<batch_row> rows_;
  std::vector<int32_t> sampling_rows_;
  std::vector<kernels::sampled_token> sampled_;
  std::vector<buffer_ref> answers_;
  std::vector<std::byte> zeros_;
  attend_stage attend_{*this};
  shared_stage shared_{*this};
  stage_task* running_ = nullptr;
  uint64_t number_ = 0;
  int layer_ = -1;  // -1 before the first gate
  size_t missing_ = 0;
  bool shared_ready_ = false;
};

}  // namespace troupe
