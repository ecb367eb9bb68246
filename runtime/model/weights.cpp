#include "runtime/model/weights.hpp"

#include <cstring>
#include <string>
#include <tuple>
#include <utility>

namespace troupe {

namespace {

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

std::string expert_prefix(uint64_t layer, uint64_t expert) {
  return "model.layers." + std::to_string(layer) + ".mlp.experts." + std::to_string(expert) + ".";
}

// Finds and packs the tensors of one model; remembers the first failure so that a loader reads as a
// list of names and shapes.
class weight_reader {
 public:
  weight_reader(const checkpoint& files, const model_config& config, const kernels::compute& math,
                const read_listener& heard, shared_weights* shared = nullptr)
      : files_(files), config_(config), math_(math), heard_(heard), shared_(shared) {}

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

  // As `find`, for a tensor that is about to be read whole.
  const tensor_view* read(const std::string& name, std::vector<int64_t> shape) {
    const tensor_view* tensor = find(name, std::move(shape));
    if (tensor == nullptr) return nullptr;
    populate(*tensor);
    if (heard_) heard_(tensor->data.size());
    return tensor;
  }

  // A weight [n, k] as kernels want it; FP8 scales are copied to FP32 storage of `scales`.
  std::optional<kernels::weight_view> view(const std::string& name, int n, int k, std::vector<float>& scales) {
    const tensor_view* tensor = read(name, {n, k});
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
    const tensor_view* scale = read(name + "_scale_inv", {(n + 127) / 128, (k + 127) / 128});
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
    if (auto ready = packed_elsewhere(name, n, k)) return ready;
    std::vector<float> scales;
    const auto weight = view(name, n, k, scales);
    return weight ? keep(name, math_.pack(*weight, format)) : kernels::packed_matrix{};
  }

  std::vector<float> vector(const std::string& name, int n) {
    const tensor_view* tensor = read(name, {n});
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

  // The two halves of kv_b [heads*(dn+dv), rk], each head's key half transposed. An FP8 weight is widened first:
  // its heads need not begin at a block of 128 rows, and the absorbed products round their weights to the profile's.
  void key_value_heads(const std::string& name, attention_weights& weights) {
    const int dn = config_.qk_nope_head_dim;
    const int dv = config_.v_head_dim;
    const int rk = config_.kv_lora_rank;
    const int rows = config_.num_attention_heads * (dn + dv);
    const auto part_name = [&](const char* half, int head) { return name + " " + half + " " + std::to_string(head); };
    if (shared_ != nullptr && shared_->found() && find(name, {rows, rk}) != nullptr) {
      bool all = true;
      for (int head = 0; head < config_.num_attention_heads && all; ++head) {
        weights.uk.push_back(shared_->find(part_name("keys", head), math_));
        weights.uv.push_back(shared_->find(part_name("values", head), math_));
        const auto& [uk, uv] = std::tie(weights.uk.back(), weights.uv.back());
        all = uk && uv && uk.n() == rk && uk.k() == dn && uv.n() == dv && uv.k() == rk;
      }
      if (all) return skip(name);
      weights.uk.clear();
      weights.uv.clear();
    }
    std::vector<float> scales;
    auto whole = view(name, rows, rk, scales);
    if (!whole) return;
    std::vector<float> widened;
    if (whole->dtype == kernels::weight_dtype::fp8_e4m3) {
      widened = widen_blocks(*whole);
      *whole = {.dtype = kernels::weight_dtype::f32, .data = widened.data(), .n = rows, .k = rk};
    }
    const size_t row_bytes = static_cast<size_t>(rk) * (whole->dtype == kernels::weight_dtype::f32 ? 4 : 2);
    const auto part = [&](int row, int count) {
      return kernels::weight_view{
          .dtype = whole->dtype,
          .data = static_cast<const std::byte*>(whole->data) + static_cast<size_t>(row) * row_bytes,
          .n = count,
          .k = rk};
    };
    for (int head = 0, row = 0; row < rows; ++head, row += dn + dv) {
      weights.uk.push_back(
          keep(part_name("keys", head), math_.pack_transposed(part(row, dn), math_.preferred_format())));
      weights.uv.push_back(keep(part_name("values", head), math_.pack(part(row + dn, dv), math_.preferred_format())));
    }
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
  // A tensor that need not be read, since another process has packed it.
  void skip(const std::string& name) {
    for (const char* part : {"", "_scale_inv"})
      if (const tensor_view* tensor = files_.find(name + part); tensor != nullptr && heard_)
        heard_(tensor->data.size());
  }

  kernels::packed_matrix packed_elsewhere(const std::string& name, int n, int k) {
    if (shared_ == nullptr || find(name, {n, k}) == nullptr) return {};
    auto ready = shared_->find(name, math_);
    if (!ready || ready.n() != n || ready.k() != k) return {};
    skip(name);
    return ready;
  }

  kernels::packed_matrix keep(const std::string& name, kernels::packed_matrix packed) {
    return shared_ == nullptr ? std::move(packed) : shared_->keep(name, std::move(packed));
  }

  static float widen(const tensor_view& tensor, int i) {
    uint16_t bits = 0;
    std::memcpy(&bits, tensor.data.data() + static_cast<size_t>(i) * 2, 2);
    return kernels::bf16_widen(bits);
  }

  // An FP8 weight as FP32 [n, k].
  static std::vector<float> widen_blocks(const kernels::weight_view& weight) {
    const auto* codes = static_cast<const uint8_t*>(weight.data);
    std::vector<float> values(static_cast<size_t>(weight.n) * static_cast<size_t>(weight.k));
    const int blocks = (weight.k + 127) / 128;
    size_t at = 0;
    for (int i = 0; i < weight.n; ++i)
      for (int j = 0; j < weight.k; ++j, ++at)
        values[at] = kernels::e4m3_decode(codes[at]) * weight.scale_inv[i / 128 * blocks + j / 128];
    return values;
  }

  const checkpoint& files_;
  const model_config& config_;
  const kernels::compute& math_;
  const read_listener& heard_;
  shared_weights* const shared_;
  std::optional<error> failure_;
};

attention_weights load_attention(weight_reader& reader, const model_config& config, const std::string& layer) {
  const std::string prefix = layer + "self_attn.";
  const int h = config.num_attention_heads;
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

  reader.key_value_heads(prefix + "kv_b_proj.weight", weights);
  return weights;
}

layer_weights load_layer(weight_reader& reader, const model_config& config, int index) {
  const std::string prefix = "model.layers." + std::to_string(index) + ".";
  layer_weights weights;
  weights.attention = load_attention(reader, config, prefix);
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

uint64_t bytes_to_load(const checkpoint& files, std::span<const std::pair<uint32_t, uint32_t>> experts) {
  uint64_t total = 0;
  for (const std::string_view name : files.names())
    if (name.find(".mlp.experts.") == name.npos) total += files.find(name)->data.size();
  for (const auto& [layer, expert] : experts)
    for (const char* matrix : {"gate_proj.weight", "up_proj.weight", "down_proj.weight"})
      for (const char* part : {"", "_scale_inv"})
        if (const auto* tensor = files.find(expert_prefix(layer, expert) + matrix + part)) total += tensor->data.size();
  return total;
}

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
                                                                const parallel_runner& run, const read_listener& heard,
                                                                std::shared_ptr<shared_weights> shared) {
  auto weights = std::make_shared<shard_weights>();
  weights->files = files.keep_alive();
  const int layers = config.num_hidden_layers;
  weights->layers.resize(static_cast<size_t>(layers));
  std::vector<std::optional<error>> failures(static_cast<size_t>(layers) + 1);
  // The head first: it is the largest item, and would otherwise keep one thread busy while the others have ended.
  run(layers + 1, [&](int i) {
    weight_reader reader(files, config, math, heard, shared.get());
    if (i > 0) {
      weights->layers[static_cast<size_t>(i - 1)] = load_layer(reader, config, i - 1);
    } else {
      const tensor_view* embedding = reader.find("model.embed_tokens.weight", {config.vocab_size, config.hidden_size});
      if (embedding != nullptr) {
        weights->embedding = *embedding;
        populate(*embedding);  // or a step would wait for the page of each token that is new to it
      }
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
  weights->shared = std::move(shared);
  return std::shared_ptr<const shard_weights>(std::move(weights));
}

result<std::shared_ptr<const expert_weights>> load_expert_weights(const checkpoint& files, const model_config& config,
                                                                  const kernels::compute& math, int layer, int expert,
                                                                  const read_listener& heard) {
  weight_reader reader(files, config, math, heard);
  auto weights = std::make_shared<expert_weights>();
  static_cast<mlp_weights&>(*weights) = reader.mlp(
      expert_prefix(static_cast<uint64_t>(layer), static_cast<uint64_t>(expert)), config.moe_intermediate_size);
  if (reader.failure()) return *reader.failure();
  return std::shared_ptr<const expert_weights>(std::move(weights));
}

}  // namespace troupe
