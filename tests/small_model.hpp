// Small models written to a temporary directory, with weights of the T0 generator (tests/t0.hpp).
//
// `write_t1_model` writes the model of MODEL.md 17.2, whose logits are known from the published code.
#pragma once

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/t0.hpp"

namespace troupe::testing {

// A directory that goes away with the object.
class temporary_directory {
 public:
  temporary_directory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "troupe-test-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~temporary_directory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  temporary_directory(const temporary_directory&) = delete;
  temporary_directory& operator=(const temporary_directory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct named_shape {
  std::string name;
  std::vector<int64_t> shape;
};

inline nlohmann::json t1_config() {
  return {{"architectures", {"DeepseekV3ForCausalLM"}},
          {"model_type", "deepseek_v3"},
          {"vocab_size", 64},
          {"hidden_size", 32},
          {"intermediate_size", 48},
          {"moe_intermediate_size", 16},
          {"num_hidden_layers", 3},
          {"num_nextn_predict_layers", 0},
          {"first_k_dense_replace", 1},
          {"moe_layer_freq", 1},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 4},
          {"q_lora_rank", 24},
          {"kv_lora_rank", 16},
          {"qk_nope_head_dim", 8},
          {"qk_rope_head_dim", 8},
          {"v_head_dim", 8},
          {"n_routed_experts", 16},
          {"n_shared_experts", 1},
          {"num_experts_per_tok", 4},
          {"n_group", 4},
          {"topk_group", 2},
          {"topk_method", "noaux_tc"},
          {"scoring_func", "sigmoid"},
          {"norm_topk_prob", true},
          {"routed_scaling_factor", 2.5},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 10000},
          {"rope_scaling",
           {{"type", "yarn"},
            {"factor", 40},
            {"original_max_position_embeddings", 4096},
            {"beta_fast", 32},
            {"beta_slow", 1},
            {"mscale", 1.0},
            {"mscale_all_dim", 1.0}}},
          {"attention_bias", false},
          {"hidden_act", "silu"},
          {"max_position_embeddings", 4096},
          {"tie_word_embeddings", false},
          {"bos_token_id", 0},
          {"eos_token_id", 1}};
}

// Every tensor of MODEL.md 4 for a V3 config without MTP layers.
inline std::vector<named_shape> v3_tensors(const nlohmann::json& c) {
  const auto n = [&](const char* field) { return c.at(field).get<int64_t>(); };
  const int64_t d = n("hidden_size"), h = n("num_attention_heads"), rq = n("q_lora_rank"), rk = n("kv_lora_rank");
  const int64_t dn = n("qk_nope_head_dim"), dr = n("qk_rope_head_dim"), dv = n("v_head_dim");
  const int64_t im = n("moe_intermediate_size"), e = n("n_routed_experts");
  std::vector<named_shape> tensors{{"model.embed_tokens.weight", {n("vocab_size"), d}},
                                   {"model.norm.weight", {d}},
                                   {"lm_head.weight", {n("vocab_size"), d}}};
  const auto mlp = [&](const std::string& prefix, int64_t width) {
    tensors.push_back({prefix + "gate_proj.weight", {width, d}});
    tensors.push_back({prefix + "up_proj.weight", {width, d}});
    tensors.push_back({prefix + "down_proj.weight", {d, width}});
  };
  for (int64_t i = 0; i < n("num_hidden_layers"); ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    const std::string a = layer + "self_attn.";
    tensors.push_back({layer + "input_layernorm.weight", {d}});
    tensors.push_back({layer + "post_attention_layernorm.weight", {d}});
    tensors.push_back({a + "q_a_proj.weight", {rq, d}});
    tensors.push_back({a + "q_a_layernorm.weight", {rq}});
    tensors.push_back({a + "q_b_proj.weight", {h * (dn + dr), rq}});
    tensors.push_back({a + "kv_a_proj_with_mqa.weight", {rk + dr, d}});
    tensors.push_back({a + "kv_a_layernorm.weight", {rk}});
    tensors.push_back({a + "kv_b_proj.weight", {h * (dn + dv), rk}});
    tensors.push_back({a + "o_proj.weight", {d, h * dv}});
    if (i < n("first_k_dense_replace")) {
      mlp(layer + "mlp.", n("intermediate_size"));
      continue;
    }
    tensors.push_back({layer + "mlp.gate.weight", {e, d}});
    tensors.push_back({layer + "mlp.gate.e_score_correction_bias", {e}});
    for (int64_t j = 0; j < e; ++j) mlp(layer + "mlp.experts." + std::to_string(j) + ".", im);
    mlp(layer + "mlp.shared_experts.", im * n("n_shared_experts"));
  }
  return tensors;
}

// Writes config.json and model.safetensors (F32): element `i` of a tensor is `value(name, i)`.
template <class Value>
void write_model(const std::filesystem::path& directory, const nlohmann::json& config, Value&& value) {
  std::ofstream(directory / "config.json") << config.dump(1);
  nlohmann::json header;
  std::vector<float> values;
  for (const auto& tensor : v3_tensors(config)) {
    const size_t begin = values.size() * 4;
    size_t count = 1;
    for (const int64_t extent : tensor.shape) count *= static_cast<size_t>(extent);
    for (size_t i = 0; i < count; ++i) values.push_back(value(tensor.name, i));
    header[tensor.name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {begin, values.size() * 4}}};
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::ofstream file(directory / "model.safetensors", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), 8);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * 4));
}

inline void write_t0_model(const std::filesystem::path& directory, const nlohmann::json& config) {
  write_model(directory, config, [](const std::string& name, size_t i) { return t0_value(name, i); });
}

inline void write_t1_model(const std::filesystem::path& directory) { write_t0_model(directory, t1_config()); }

}  // namespace troupe::testing
