// The forward pass of one micro-batch on one shard, cut into the stages that a schedule orders.
//
// All stages of a layer work on a `micro_batch_rows`: R rows, each one position of one sequence.
// Rows never mix but through the KV cache, so a row's values depend only on its own history.
// Formulas: MODEL.md 6 to 9 (the shared notes of the model family), absorbed attention throughout.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "kernels/compute.hpp"
#include "runtime/device/worker_team.hpp"
#include "runtime/memory/huge_allocator.hpp"
#include "runtime/model/config.hpp"
#include "runtime/model/kv_cache.hpp"
#include "runtime/model/weights.hpp"

namespace troupe {

// One row of a micro-batch.
struct row_input {
  int32_t token = 0;
  int32_t position = 0;                          // from 0
  const std::vector<int32_t>* blocks = nullptr;  // the sequence's KV blocks, covering `position`
};

using float_rows = std::vector<float, huge_allocator<float>>;

// Memory on cache-line boundaries.
class line_buffer {
 public:
  // Makes room for at least `bytes`; never shrinks, so that what comes and goes allocates once.
  void resize(size_t bytes) { lines_.resize(std::max(lines_.size(), (bytes + sizeof(line) - 1) / sizeof(line))); }
  std::byte* data() { return reinterpret_cast<std::byte*>(lines_.data()); }

 private:
  struct alignas(64) line {
    std::byte bytes[64];
  };
  std::vector<line, huge_allocator<line>> lines_;
};

// Rows whose attention is computed together: their absorbed queries stay in the caches.
inline constexpr int attention_rows = 64;

// One piece of an attention: rows [first, first + count) of one sequence and a range of heads; `span` >= 0: only that
// span of one row's positions, whose partial result is number `partial`.
struct attention_item {
  int first = 0, count = 0;
  int head_begin = 0, head_end = 0;
  int span = -1;
  int partial = 0;
  bool merged = false;  // its result went into that of the row's first span
};

// The arrays of one micro-batch; taken once for `rows_max` rows and reused for every step.
class micro_batch_rows {
 public:
  micro_batch_rows(const model_config& config, const kernels::compute& math, int rows_max);

  int rows_max() const { return rows_max_; }
  int count() const { return static_cast<int>(inputs.size()); }

  std::vector<row_input> inputs;                 // [R]
  std::vector<kernels::routed_expert> routes;    // [R, top_k] of the current MoE layer, highest gate first
  std::vector<const std::byte*> expert_outputs;  // [R, top_k] rows of combines, in the combine's dtype

  float_rows x;               // [R, hidden] residual stream
  float_rows normed;          // [R, hidden] input of attention, then of the MLP or experts
  float_rows shared;          // [R, hidden] shared expert's output
  float_rows latent_q;        // [R, rq]
  float_rows q;               // [R, heads*dq]
  float_rows kv;              // [R, rk+dr]
  float_rows heads_out;       // [attention_rows, heads*dv]
  float_rows cosines, sines;  // [R, dr/2]
  float_rows router;          // [R, experts]
  float_rows logits;          // [rows that sample, vocab]

  // Inputs of products (kernels::product_input).
  line_buffer normed_input;    // [R, hidden]
  line_buffer latent_q_input;  // [R, rq]
  line_buffer heads_input;     // [R, heads*dv]
  line_buffer mlp_input;       // [R, width of the widest dense or shared MLP]

  line_buffer absorbed;  // [attention_rows, heads, rk+dr] FP32, or BF16 where queries are rounded
  line_buffer queries;   // [attention_rows, query_bytes]
  line_buffer attended;  // [attention_rows, attended_bytes]
  line_buffer partials;  // [spans of divided rows, partial_bytes]
  std::vector<attention_item> attention_items;

 private:
  int rows_max_;
};

class forward_pass {
 public:
  // Requires: everything outlives this. `bf16_outputs`: combines carry BF16, else FP32.
  forward_pass(const model_config& config, const shard_weights& weights, const kernels::compute& math,
               bool bf16_outputs);

  // Embedding and rotation tables of a new step.
  void begin(micro_batch_rows& batch, worker_team& team) const;
  // Norm, projections, rotation, KV write (`attn_0`).
  void attention_inputs(micro_batch_rows& batch, kv_cache& cache, int layer, worker_team& team) const;
  // Core attention, output projection, residual, norm and, in MoE layers, the gate (`attn_1`).
  void attention_core(micro_batch_rows& batch, kv_cache& cache, int layer, worker_team& team) const;
  // A dense layer's MLP, added to the residual.
  void dense_mlp(micro_batch_rows& batch, int layer, worker_team& team) const;
  // The shared expert, kept beside until the combine.
  void shared_expert(micro_batch_rows& batch, int layer, worker_team& team) const;
  // x += (sum of gate * expert output in the order of the row's list) + shared.
  // Requires: every entry of `expert_outputs` is set.
  void combine(micro_batch_rows& batch, worker_team& team) const;
  // Logits [sampling_rows.size(), vocab] of the given rows.
  void head(micro_batch_rows& batch, std::span<const int32_t> sampling_rows, worker_team& team) const;

  // Cost of one layer's attention, or MLP, for the cost model.
  double attention_flops(const micro_batch_rows& batch) const;
  double layer_bytes(int layer) const;

  const model_config& config() const { return config_; }
  const kernels::compute& math() const { return math_; }

 private:
  // A product and where it goes: y [m, weight.n()], tight.
  struct projection {
    const kernels::packed_matrix* weight;
    float* y;
  };
  // Projections of one input, shared out together.
  void project(const char* section, std::initializer_list<projection> parts, const kernels::product_input& x,
               worker_team& team) const;
  // Norm of one row x [width] as row `row` of a product's input, and as FP32 if `out` is not null.
  void norm_row(const float* x, const std::vector<float>& weight, int row, std::byte* input, float* out,
                worker_memory& memory) const;
  void mlp(const mlp_weights& weights, micro_batch_rows& batch, float* out, const char* gate_section,
           const char* down_section, worker_team& team) const;
  // Core attention of rows [first, first + count) into `heads_input`.
  void attend(micro_batch_rows& batch, kv_cache& cache, int layer, int first, int count, worker_team& team) const;
  void absorb_queries(micro_batch_rows& batch, int layer, int first, int count, worker_team& team) const;
  void divide_attention(micro_batch_rows& batch, int first, int count, int threads) const;
  void join_heads(micro_batch_rows& batch, int layer, int first, int count, worker_team& team) const;
  kernels::mla_shape attention_shape() const;

  const model_config& config_;
  const shard_weights& weights_;
  const kernels::compute& math_;
  bool bf16_outputs_;
  bool rounds_norms_;  // profile amx_bf16: norm outputs are BF16 values
  std::vector<float> frequencies_;
  double rope_scale_;
  float softmax_scale_;
};

}  // namespace troupe
