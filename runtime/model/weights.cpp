#include "runtime/model/weights.hpp"

#include <cstring>
#include <string>

namespace troupe {

namespace {

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

// Finds and packs the tensors of one model; remembers the first failure so that a loader reads as a
// list of names and shapes.
class weight_reader {
 public:
  weight_reader(const checkpoint& files, const model_config& config, const kernels::compute& math)
      : files_(files), config_(config), math_(math) {}

  const tensor_view* find(const std::string& name, std::vector<int64_t> shape) {
    if (failure_) return nullptr;
    const tensor_view* tensor = files_.find(name);
    if (tensor == nullptr) {
      failure_ = error{errc::not_found, "the checkpoint has no tensor " + name + "; it is not complete"};
      return nullptr;
    }
    if (tensor->shape != shape) {
      failure_ = error{errc::malformed, "tensor " + name + " has shape " + shape_text(tensor->shape) +
                                            " where config.json asks for " + shape_text(shape)};
      return nullptr;
    }
    return tensor;
  }

  // A weight [n, k] as kernels want it; FP8 scales are copied to FP32 storage of `scales`.
  std::optional<kernels::weight_view> view(const std::string& name, int n, int k, std::vector<float>& scales) {
    const tensor_view* tensor = find(name, {n, k});
    if (tensor == nullptr) return std::nullopt;
    kernels::weight_view weight{.data = tensor->data.data(), .n = n, .k = k};
    switch (tensor->dtype) {
      case tensor_dtype::f32: weight.dtype = kernels::weight_dtype::f32; return weight;
      case tensor_dtype::bf16: weight.dtype = kernels::weight_dtype::bf16; return weight;
      case tensor_dtype::f8_e4m3: break;
      default:
        failure_ = error{errc::unsupported, "tensor " + name + " is " + std::string(troupe::name(tensor->dtype)) +
                                                "; weights may be F32, BF16 or F8_E4M3"};
        return std::nullopt;
    }
    const tensor_view* scale = find(name + "_scale_inv", {(n + 127) / 128, (k + 127) / 128});
    if (scale == nullptr) return std::nullopt;
    if (scale->dtype != tensor_dtype::f32) {
      failure_ = error{errc::malformed, "tensor " + name + "_scale_inv is not F32"};
      return std::nullopt;
    }
    scales.resize(scale->data.size() / sizeof(float));
    std::memcpy(scales.data(), scale->data.data(), scale->data.size());
    weight.dtype = kernels::weight_dtype::fp8_e4m3;
    weight.scale_inv = scales.data();
    return weight;
  }

  kernels::packed_matrix matrix(const std::string& name, int n, int k) {
    return matrix(name, n, k, math_.preferred_format());
  }

  kernels::packed_matrix matrix(const std::string& name, int n, int k, kernels::weight_format format) {
    std::vector<float> scales;
    const auto weight = view(name, n, k, scales);
    return weight ? math_.pack(*weight, format) : kernels::packed_matrix{};
  }

  std::vector<float> vector(const std::string& name, int n) {
    const tensor_view* tensor = find(name, {n});
    std::vector<float> values(static_cast<size_t>(n));
    if (tensor == nullptr) return values;
    if (tensor->dtype == tensor_dtype::f32) {
      std::memcpy(values.data(), tensor->data.data(), tensor->data.size());
    } else if (tensor->dtype == tensor_dtype::bf16) {
      for (int i = 0; i < n; ++i) values[static_cast<size_t>(i)] = widen(*tensor, i);
    } else {
      failure_ = error{errc::unsupported, "tensor " + name + " is neither F32 nor BF16"};
    }
    return values;
  }

  // The whole of a weight as FP32 [n, k] (for kv_b, whose halves are packed a head at a time and whose
  // heads need not begin at a block of 128 rows).
  std::vector<float> dense(const std::string& name, int n, int k) {
    std::vector<float> scales;
    const auto weight = view(name, n, k, scales);
    std::vector<float> values(static_cast<size_t>(n) * static_cast<size_t>(k));
    if (!weight) return values;
    const int blocks = (k + 127) / 128;
    for (int i = 0; i < n; ++i)
      for (int j = 0; j < k; ++j) {
        const size_t at = static_cast<size_t>(i) * static_cast<size_t>(k) + static_cast<size_t>(j);
        values[at] = element(*weight, at, static_cast<size_t>(i / 128 * blocks + j / 128));
      }
    return values;
  }

  mlp_weights mlp(const std::string& prefix, int width) {
    mlp_weights weights;
    weights.gate = matrix(prefix + "gate_proj.weight", width, config_.hidden_size);
    weights.up = matrix(prefix + "up_proj.weight", width, config_.hidden_size);
    weights.down = matrix(prefix + "down_proj.weight", config_.hidden_size, width);
    return weights;
  }

  const std::optional<error>& failure() const { return failure_; }

 private:
  static float widen(const tensor_view& tensor, int i) {
    uint16_t bits = 0;
    std::memcpy(&bits, tensor.data.data() + static_cast<size_t>(i) * 2, 2);
    return kernels::bf16_widen(bits);
  }

  static float element(const kernels::weight_view& weight, size_t at, size_t block) {
    const auto* bytes = static_cast<const std::byte*>(weight.data);
    if (weight.dtype == kernels::weight_dtype::f32) {
      float value = 0;
      std::memcpy(&value, bytes + at * 4, 4);
      return value;
    }
    if (weight.dtype == kernels::weight_dtype::bf16) {
      uint16_t bits = 0;
      std::memcpy(&bits, bytes + at * 2, 2);
      return kernels::bf16_widen(bits);
    }
    return kernels::e4m3_decode(static_cast<uint8_t>(bytes[at])) * weight.scale_inv[block];
  }

  const checkpoint& files_;
  const model_config& config_;
  const kernels::compute& math_;
  std::optional<error> failure_;
};

attention_weights load_attention(weight_reader& reader, const model_config& config, const kernels::compute& math,
                                 const std::string& layer) {
  const std::string prefix = layer + "self_attn.";
  const int h = config.num_attention_heads;
  const int dn = config.qk_nope_head_dim;
  const int dv = config.v_head_dim;
  const int rk = config.kv_lora_rank;
  const int d = config.hidden_size;
  attention_weights weights;
  weights.input_norm = reader.vector(layer + "input_layernorm.weight", d);
  weights.post_norm = reader.vector(layer + "post_attention_layernorm.weight", d);
  if (config.q_lora_rank > 0) {
    weights.q_a = reader.matrix(prefix + "q_a_proj.weight", config.q_lora_rank, d);
    weights.q_a_norm = reader.vector(prefix + "q_a_layernorm.weight", config.q_lora_rank);
    weights.q_b = reader.matrix(prefix + "q_b_proj.weight", h * config.dq(), config.q_lora_rank);
  } else {
    weights.q_b = reader.matrix(prefix + "q_proj.weight", h * config.dq(), d);
  }
  weights.kv_a = reader.matrix(prefix + "kv_a_proj_with_mqa.weight", rk + config.qk_rope_head_dim, d);
  weights.kv_a_norm = reader.vector(prefix + "kv_a_layernorm.weight", rk);
  weights.o = reader.matrix(prefix + "o_proj.weight", d, h * dv);

  const auto kv_b = reader.dense(prefix + "kv_b_proj.weight", h * (dn + dv), rk);
  for (int j = 0; j < h; ++j) {
    const float* head = kv_b.data() + static_cast<size_t>(j) * static_cast<size_t>(dn + dv) * static_cast<size_t>(rk);
    kernels::weight_view uk{.dtype = kernels::weight_dtype::f32, .data = head, .n = dn, .k = rk};
    kernels::weight_view uv{.dtype = kernels::weight_dtype::f32,
                            .data = head + static_cast<size_t>(dn) * static_cast<size_t>(rk),
                            .n = dv,
                            .k = rk};
    weights.uk.push_back(math.pack_transposed(uk, math.preferred_format()));
    weights.uv.push_back(math.pack(uv, math.preferred_format()));
  }
  return weights;
}

layer_weights load_layer(weight_reader& reader, const model_config& config, const kernels::compute& math, int index) {
  const std::string prefix = "model.layers." + std::to_string(index) + ".";
  layer_weights weights;
  weights.attention = load_attention(reader, config, math, prefix);
  if (!config.is_moe(index)) {
    weights.dense = reader.mlp(prefix + "mlp.", config.intermediate_size);
    return weights;
  }
  weights.router = reader.matrix(prefix + "mlp.gate.weight", config.n_routed_experts, config.hidden_size,
                                 kernels::weight_format::f32);
  if (config.has_router_bias())
    weights.router_bias = reader.vector(prefix + "mlp.gate.e_score_correction_bias", config.n_routed_experts);
  if (config.n_shared_experts > 0)
    weights.shared = reader.mlp(prefix + "mlp.shared_experts.", config.shared_intermediate_size());
  return weights;
}

}  // namespace

parallel_runner run_inline() {
  return [](int count, const std::function<void(int)>& item) {
    for (int i = 0; i < count; ++i) item(i);
  };
}

size_t shard_weights::bytes() const {
  size_t total = head.bytes();
  for (const auto& layer : layers) {
    const auto& a = layer.attention;
    total += a.q_a.bytes() + a.q_b.bytes() + a.kv_a.bytes() + a.o.bytes();
    for (const auto& matrix : a.uk) total += matrix.bytes();
    for (const auto& matrix : a.uv) total += matrix.bytes();
    total += layer.dense.bytes() + layer.shared.bytes() + layer.router.bytes();
  }
  return total;
}

void shard_weights::embed(int token, int hidden, float* out) const {
  const std::byte* row = embedding.data.data() + static_cast<size_t>(token) * static_cast<size_t>(hidden) *
                                                     static_cast<size_t>(size_of(embedding.dtype));
  if (embedding.dtype == tensor_dtype::f32) {
    std::memcpy(out, row, static_cast<size_t>(hidden) * 4);
    return;
  }
  for (int i = 0; i < hidden; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, row + static_cast<size_t>(i) * 2, 2);
    out[i] = kernels::bf16_widen(bits);
  }
}

result<std::shared_ptr<const shard_weights>> load_shard_weights(const checkpoint& files, const model_config& config,
                                                                const kernels::compute& math,
                                                                const parallel_runner& run) {
  auto weights = std::make_shared<shard_weights>();
  weights->files = files.keep_alive();
  const int layers = config.num_hidden_layers;
  weights->layers.resize(static_cast<size_t>(layers));
  std::vector<std::optional<error>> failures(static_cast<size_t>(layers) + 1);
  run(layers + 1, [&](int i) {
    weight_reader reader(files, config, math);
    if (i < layers) {
      weights->layers[static_cast<size_t>(i)] = load_layer(reader, config, math, i);
    } else {
      const tensor_view* embedding = reader.find("model.embed_tokens.weight", {config.vocab_size, config.hidden_size});
      if (embedding != nullptr) weights->embedding = *embedding;
      weights->final_norm = reader.vector("model.norm.weight", config.hidden_size);
      weights->head = reader.matrix(config.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight",
                                    config.vocab_size, config.hidden_size);
    }
    failures[static_cast<size_t>(i)] = reader.failure();
  });
  for (const auto& failure : failures)
    if (failure) return *failure;
  if (weights->embedding.dtype != tensor_dtype::bf16 && weights->embedding.dtype != tensor_dtype::f32)
    return error{errc::unsupported, "tensor model.embed_tokens.weight is neither BF16 nor F32"};
  return std::shared_ptr<const shard_weights>(std::move(weights));
}

result<std::shared_ptr<const expert_weights>> load_expert_weights(const checkpoint& files, const model_config& config,
                                                                  const kernels::compute& math, int layer, int expert) {
  weight_reader reader(files, config, math);
  auto weights = std::make_shared<expert_weights>();
  static_cast<mlp_weights&>(*weights) =
      reader.mlp("model.layers." + std::to_string(layer) + ".mlp.experts." + std::to_string(expert) + ".",
                 config.moe_intermediate_size);
  if (reader.failure()) return *reader.failure();
  return std::shared_ptr<const expert_weights>(std::move(weights));
}

}  // namespace troupe
