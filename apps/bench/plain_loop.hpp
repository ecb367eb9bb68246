// A model's forward pass in a plain loop: no actor, no message, no queue. For measurements: what the serving path is
// compared with, and where the time of each operator shows.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/device/expert_products.hpp"
#include "runtime/model/forward.hpp"
#include "runtime/model/kv_cache.hpp"
#include "runtime/model/weights.hpp"

namespace troupe {

// What one section of a step (`section_listener`) reads and computes.
struct section_work {
  const char* section;
  std::vector<std::span<const std::byte>> reads;  // weights and cached latents, in the order of a plain reader
  double flops = 0;
};

// All weights of a model, packed for a profile.
struct plain_loop_weights {
  model_config config;
  std::shared_ptr<const shard_weights> shard;
  std::vector<std::shared_ptr<const expert_weights>> experts;  // [layers, experts]; null in dense layers
};

// One sequence of calls from one thread, which leads the team.
class plain_loop {
 public:
  // Loads all weights of a model directory. Fails: as `load_model_config` and `load_shard_weights` do.
  static result<std::unique_ptr<plain_loop>> load(const std::string& model, kernels::profile profile, int threads);
  // Computes with weights that somebody else has loaded: where they lie in memory decides about a few per cent.
  plain_loop(plain_loop_weights weights, kernels::profile profile, int threads);

  // Seconds of a prompt of `tokens`, at most 512 rows at a time.
  double prefill(int tokens);
  // Seconds of `steps` decode steps of `batch` sequences (at most 512), each `context` positions long at the start,
  // after one more that is not counted. What the cache holds before does not matter to the time.
  double decode(int batch, int context, int steps);

  // The same piece by piece: `start_prompt` computes all but the last 512 rows, `finish_prompt` those (any number of
  // times); `start_decoding` makes room, `decode_step` computes one token of each sequence.
  void start_prompt(int tokens);
  void finish_prompt();
  void start_decoding(int batch, int context, int steps);
  void decode_step();

  // What the last step read and computed, in its order.
  std::vector<section_work> last_step() const;

  worker_team& team() { return team_; }
  const kernels::compute& math() const { return *math_; }

 private:
  // An expert's rows in a layer.
  struct expert_rows {
    std::vector<int> pairs;
    std::vector<std::byte*> outputs;
  };

  plain_loop(kernels::profile profile, int threads);
  result<void> load_weights(const std::string& model);
  void use_weights();
  void sample(size_t rows);
  int32_t token_of(int sequence, int at) const;
  void start(int sequences, int positions);
  void prompt_rows(int first, int count);
  void step(const std::vector<int32_t>& sampled);
  void routed_experts(int layer);
  void add_attention(int layer, std::vector<section_work>& works) const;

  std::unique_ptr<kernels::compute> math_;
  worker_team team_;
  bool bf16_;
  plain_loop_weights weights_;
  std::optional<forward_pass> pass_;
  std::unique_ptr<kv_cache> cache_;
  std::vector<std::vector<int32_t>> sequences_;
  int next_position_ = 0;  // of the prompt or of every sequence
  int prompt_end_ = 0;
  std::unique_ptr<micro_batch_rows> rows_;
  std::vector<expert_rows> batches_;  // [experts]
  std::vector<expert_batch> used_;    // those with rows
  std::vector<int> experts_used_;     // and their numbers within the layer
  expert_products products_;
  std::vector<std::byte> outputs_;
  struct expert_use {
    int expert;
    int rows;
  };
  std::vector<std::vector<expert_use>> uses_;  // [layers] of the last step
  std::vector<int32_t> sampled_rows_;          // of decode: all
  std::vector<kernels::sampled_token> tokens_;
  size_t sampled_ = 0;  // rows that the last step sampled
};

}  // namespace troupe
