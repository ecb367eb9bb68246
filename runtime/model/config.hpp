// What a model directory's config.json says, checked.
//
// Every field that inference needs, under its name in config.json. The file is somebody else's, so
// each value is checked against a range and against the others before anything is sized by it; a
// `model_config` made by these functions can be used without further checks. A plain value: any
// thread may read it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/compute.hpp"
#include "runtime/error.hpp"

namespace troupe {

enum class model_family : uint8_t { deepseek_v2, deepseek_v3 };

// "deepseek_v3", as in `model_type`.
std::string_view name(model_family family);

// `topk_method`: how the router chooses experts (MODEL.md 9.1, 9.2).
enum class topk_method : uint8_t {
  noaux_tc,              // V3: groups by the two best biased scores
  greedy,                // V2-Lite: the K best, groups ignored
  group_limited_greedy,  // V2: groups by the best score
};

// `quantization_config`. Blocks are [output rows, input columns] and share one FP32 multiplier.
struct quantisation_config {
  static constexpr int block_rows = 128;
  static constexpr int block_columns = 128;
  bool fp8 = false;           // weights come as F8_E4M3 with weight_scale_inv beside them
  bool scales_ue8m0 = false;  // `scale_fmt`: the scales are powers of two (V3.1)
};

// generation_config.json: what the model's authors suggest. All optional.
struct generation_config {
  std::optional<float> temperature;  // 0 when do_sample is false
  std::optional<float> top_p;        // in (0, 1]
  std::optional<int> top_k;          // 0: off
  std::vector<int32_t> eos_token_ids;
};

struct model_config {
  model_family family = model_family::deepseek_v3;
  int vocab_size = 0;                // V
  int hidden_size = 0;               // d
  int intermediate_size = 0;         // I, dense layers
  int num_hidden_layers = 0;         // L, without the MTP layers
  int num_nextn_predict_layers = 0;  // MTP layers, stored at L, L + 1, ...
  int max_position_embeddings = 0;   // positions
  float rms_norm_eps = 1e-6F;
  bool tie_word_embeddings = false;  // the head is the embedding
  int32_t bos_token_id = 0;
  std::vector<int32_t> eos_token_ids;  // of config.json and generation_config.json, ascending

  // Mixture of experts. n_routed_experts is 0 in a dense model, and the rest of the group with it.
  int first_k_dense_replace = 0;  // k0
  int moe_layer_freq = 1;
  int moe_intermediate_size = 0;  // Im
  int n_routed_experts = 0;       // E
  int n_shared_experts = 0;       // Es; one fused MLP of width Es * Im
  int num_experts_per_tok = 0;    // K
  int n_group = 1;                // G
  int topk_group = 1;             // Gk
  topk_method method = topk_method::noaux_tc;
  bool sigmoid_scores = true;  // scoring_func: else softmax
  bool norm_topk_prob = true;
  float routed_scaling_factor = 1;

  // Attention.
  int num_attention_heads = 0;  // h
  int q_lora_rank = 0;          // rq; 0: a single q_proj
  int kv_lora_rank = 0;         // rk
  int qk_nope_head_dim = 0;     // dn
  int qk_rope_head_dim = 0;     // dr, even
  int v_head_dim = 0;           // dv
  kernels::rope_parameters rope;

  quantisation_config quantisation;
  generation_config generation;

  int dq() const { return qk_nope_head_dim + qk_rope_head_dim; }
  int shared_intermediate_size() const { return n_shared_experts * moe_intermediate_size; }
  // Whether layer `layer` routes to experts. MTP layers (at L and beyond) do as the others.
  bool is_moe(int layer) const;
  bool has_router_bias() const { return method == topk_method::noaux_tc; }
  // MODEL.md 9.1, and for V2 the either-normalise-or-scale of 9.2. Requires: n_routed_experts > 0.
  kernels::router_parameters router() const;
  // 1 / sqrt(dq) and YaRN's factor, MODEL.md 7.2.
  float softmax_scale() const { return static_cast<float>(kernels::softmax_scale(rope, dq())); }
};

// Reads the text of a config.json; unknown fields are ignored.
// Fails: malformed (not JSON, a field missing, of another type or out of range; the sentence names
// it), unsupported (another architecture, activation, rope or quantisation).
result<model_config> parse_model_config(std::string_view json);

// Reads the text of a generation_config.json. Fails: malformed.
result<generation_config> parse_generation_config(std::string_view json);

// Reads config.json of a model directory, and generation_config.json when there is one.
// Fails: as above, and not_found or internal when the file cannot be read.
result<model_config> load_model_config(const std::filesystem::path& directory);

}  // namespace troupe
