// A model's weights in the layout that kernels stream, made once from a checkpoint.
//
// `shard_weights` is what every attention shard holds: embedding, attention, dense and shared-expert
// MLPs, router and head. `expert_weights` is one routed expert of one layer; a host holds those that
// the placement gives it. Both are immutable after loading and read by any number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/compute.hpp"
#include "runtime/error.hpp"
#include "runtime/model/config.hpp"
#include "runtime/model/safetensors.hpp"
#include "runtime/model/shared_weights.hpp"

namespace troupe {

// SwiGLU MLP: down(silu(gate x) * (up x)).
struct mlp_weights {
  kernels::packed_matrix gate;  // [width, hidden]
  kernels::packed_matrix up;    // [width, hidden]
  kernels::packed_matrix down;  // [hidden, width]

  size_t bytes() const { return gate.bytes() + up.bytes() + down.bytes(); }
};

struct expert_weights : mlp_weights {};

struct attention_weights {
  std::vector<float> input_norm;           // [hidden]
  kernels::packed_matrix q_a;              // [rq, hidden]; empty when the model has no q_lora
  std::vector<float> q_a_norm;             // [rq]
  kernels::packed_matrix q_b;              // [heads*dq, rq], or q_proj [heads*dq, hidden] without q_lora
  kernels::packed_matrix kv_a;             // [rk+dr, hidden]
  std::vector<float> kv_a_norm;            // [rk]
  std::vector<kernels::packed_matrix> uk;  // a head: [rk, dn], the transposed key half of kv_b
  std::vector<kernels::packed_matrix> uv;  // a head: [dv, rk], the value half of kv_b
  kernels::packed_matrix o;                // [hidden, heads*dv]
  std::vector<float> post_norm;            // [hidden]
};

struct layer_weights {
  attention_weights attention;
  mlp_weights dense;               // dense layers
  kernels::packed_matrix router;   // [experts, hidden], FP32; MoE layers
  std::vector<float> router_bias;  // [experts], or empty
  mlp_weights shared;              // [shared*moe_intermediate, hidden]; MoE layers
};

struct shard_weights {
  std::shared_ptr<const void> files;             // keeps the mapped checkpoint alive
  std::shared_ptr<const shared_weights> shared;  // where matrices lie that other processes use too, or null
  tensor_view embedding;                         // [vocab, hidden], in the mapped file
  std::vector<layer_weights> layers;
  std::vector<float> final_norm;  // [hidden]
  kernels::packed_matrix head;    // [vocab, hidden]

  size_t bytes() const;

  // One row of the embedding as FP32: out [hidden]. Requires: token < vocab.
  void embed(int token, int hidden, float* out) const;
};

// Runs `item(i)` for i in [0, count), possibly on several threads.
using parallel_runner = std::function<void(int count, const std::function<void(int)>& item)>;
parallel_runner run_inline();

// Hears of every tensor that a load reads, on any of its threads: the tensor's bytes. May be empty.
using read_listener = std::function<void(uint64_t bytes)>;

// Bytes that loading the shard's weights and these (layer, expert) pairs reads. Pairs that the checkpoint does not
// hold count nothing.
uint64_t bytes_to_load(const checkpoint& files, std::span<const std::pair<uint32_t, uint32_t>> experts);

// Checks every tensor's name, shape and dtype before packing. Matrices that `shared` has are taken from there, others
// put there, for the caller to seal; it may be null.
// Fails: not_found (a tensor is missing), malformed (a shape or dtype is wrong), each naming the tensor.
result<std::shared_ptr<const shard_weights>> load_shard_weights(const checkpoint& files, const model_config& config,
                                                                const kernels::compute& math,
                                                                const parallel_runner& run,
                                                                const read_listener& heard = {},
                                                                std::shared_ptr<shared_weights> shared = nullptr);
result<std::shared_ptr<const expert_weights>> load_expert_weights(const checkpoint& files, const model_config& config,
                                                                  const kernels::compute& math, int layer, int expert,
                                                                  const read_listener& heard = {});

}  // namespace troupe
