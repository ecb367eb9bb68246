#include "tests/bench/bench_1b.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <vector>

#include "kernels/compute.hpp"
#include "tests/small_model.hpp"

namespace troupe {

namespace {

constexpr int router_experts = 8;  // for each that a token takes

nlohmann::json bench_config(const bench_model& model) {
  auto config = testing::t1_config();
  config["vocab_size"] = 32768;
  config["hidden_size"] = 1024;
  config["intermediate_size"] = 2816;
  config["moe_intermediate_size"] = 4096 / model.top_k;
  config["num_hidden_layers"] = 12;
  config["first_k_dense_replace"] = 1;
  config["num_attention_heads"] = 16;
  config["num_key_value_heads"] = 16;
  config["q_lora_rank"] = 384;
  config["kv_lora_rank"] = 512;
  config["qk_nope_head_dim"] = 128;
  config["qk_rope_head_dim"] = 64;
  config["v_head_dim"] = 128;
  config["n_routed_experts"] = router_experts * model.top_k;
  config["num_experts_per_tok"] = model.top_k;
  config["n_group"] = 1;
  config["topk_group"] = 1;
  config["rope_scaling"] = nullptr;
  config["max_position_embeddings"] = 32768;
  if (model.weights == bench_weights::fp8)
    config["quantization_config"] = {
        {"activation_scheme", "dynamic"}, {"fmt", "e4m3"}, {"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  return config;
}

// Standard deviation of a tensor's values: norms stay near one, products keep their scale.
float spread(const testing::named_shape& tensor) {
  if (tensor.shape.size() == 1) return 0.02F;
  return 1.0F / std::sqrt(static_cast<float>(tensor.shape[1]));
}

// Sum of four uniform draws: close enough to a normal distribution, and the same on every machine.
float draw(uint64_t& state, float deviation) {
  const uint64_t bits = testing::t0_mix(state++);
  int sum = 0;
  for (unsigned i = 0; i < 4; ++i) sum += static_cast<int>(bits >> (16 * i) & 0xffffU);
  return (static_cast<float>(sum) - 131070.0F) / 37837.0F * deviation;
}

void write_tokenizer(const std::filesystem::path& directory) {
  // One token for each byte, in the byte alphabet's order, and the two control tokens.
  nlohmann::json vocabulary;
  int next = 3;
  const auto add = [&](unsigned code) {
    std::string text;
    if (code < 0x80) {
      text += static_cast<char>(code);
    } else {
      text += static_cast<char>(0xc0U | code >> 6U);
      text += static_cast<char>(0x80U | (code & 0x3fU));
    }
    vocabulary[text] = next++;
  };
  for (unsigned byte = 0x21; byte <= 0x7e; ++byte) add(byte);
  for (unsigned byte = 0xa1; byte <= 0xff; ++byte)
    if (byte != 0xad) add(byte);
  for (unsigned code = 0x100; code <= 0x143; ++code) add(code);
  const auto special = [](int id, const char* text) {
    return nlohmann::json{{"id", id},        {"content", text},     {"single_word", false}, {"lstrip", false},
                          {"rstrip", false}, {"normalized", false}, {"special", true}};
  };
  const nlohmann::json level{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const nlohmann::json tokenizer{
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", {special(0, "<｜begin▁of▁sentence｜>"), special(1, "<｜end▁of▁sentence｜>")}},
      {"normalizer", nullptr},
      {"pre_tokenizer", level},
      {"post_processor", nullptr},
      {"decoder", level},
      {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", nlohmann::json::array()}}}};
  std::ofstream(directory / "tokenizer.json") << tokenizer.dump(1);
  std::ofstream(directory / "tokenizer_config.json") << nlohmann::json{
      {"add_bos_token", true},
      {"add_eos_token", false},
      {"bos_token", "<｜begin▁of▁sentence｜>"},
      {"eos_token", "<｜end▁of▁sentence｜>"}}.dump(1);
}

bool is_bias(const std::string& name) { return name.ends_with("e_score_correction_bias"); }

bool is_router(const std::string& name) { return name.ends_with("mlp.gate.weight"); }

// Whether DeepSeek-V3's FP8 checkpoints store this tensor in FP8.
bool is_fp8(const testing::named_shape& tensor, bench_weights weights) {
  return weights == bench_weights::fp8 && tensor.shape.size() == 2 && tensor.name.starts_with("model.layers.") &&
         !is_router(tensor.name);
}

size_t elements(const testing::named_shape& tensor) {
  size_t count = 1;
  for (const int64_t extent : tensor.shape) count *= static_cast<size_t>(extent);
  return count;
}

testing::named_shape scales_of(const testing::named_shape& tensor) {
  return {tensor.name + "_scale_inv", {(tensor.shape[0] + 127) / 128, (tensor.shape[1] + 127) / 128}};
}

nlohmann::json header_of(const std::vector<testing::named_shape>& tensors, bench_weights weights) {
  nlohmann::json header;
  uint64_t offset = 0;
  const auto add = [&](const testing::named_shape& tensor, const char* dtype, uint64_t element_bytes) {
    const uint64_t end = offset + elements(tensor) * element_bytes;
    header[tensor.name] = {{"dtype", dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  };
  for (const auto& tensor : tensors) {
    if (is_bias(tensor.name)) {
      add(tensor, "F32", 4);
    } else if (is_fp8(tensor, weights)) {
      add(tensor, "F8_E4M3", 1);
      add(scales_of(tensor), "F32", 4);
    } else {
      add(tensor, "BF16", 2);
    }
  }
  return header;
}

template <class Value>
void write_values(std::ofstream& file, const std::vector<Value>& values) {
  file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(Value)));
}

// A weight [n, k] of BF16 bits as E4M3 codes and one scale a block of 128 x 128: its largest magnitude becomes 448.
void write_fp8(std::ofstream& file, const testing::named_shape& tensor, const std::vector<uint16_t>& values) {
  const auto n = static_cast<size_t>(tensor.shape[0]), k = static_cast<size_t>(tensor.shape[1]);
  std::vector<uint8_t> codes(n * k);
  std::vector<float> scales;
  for (size_t row = 0; row < n; row += 128)
    for (size_t column = 0; column < k; column += 128) {
      const size_t rows_end = std::min(row + 128, n), columns_end = std::min(column + 128, k);
      float most = 0;
      for (size_t i = row; i < rows_end; ++i)
        for (size_t j = column; j < columns_end; ++j)
          most = std::max(most, std::abs(kernels::bf16_widen(values[i * k + j])));
      const float scale = most > 0 ? most / 448.0F : 1.0F;
      for (size_t i = row; i < rows_end; ++i)
        for (size_t j = column; j < columns_end; ++j)
          codes[i * k + j] = kernels::e4m3_encode(kernels::bf16_widen(values[i * k + j]) / scale);
      scales.push_back(scale);
    }
  write_values(file, codes);
  write_values(file, scales);
}

}  // namespace

result<void> write_bench_1b(const std::filesystem::path& directory, const bench_model& model) {
  std::filesystem::create_directories(directory);
  const auto config = bench_config(model);
  std::ofstream(directory / "config.json") << config.dump(1);
  write_tokenizer(directory);
  const auto tensors = testing::v3_tensors(config);
  std::string text = header_of(tensors, model.weights).dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  std::ofstream file(directory / "model.safetensors", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), 8);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  std::vector<uint16_t> values;
  for (const auto& tensor : tensors) {
    if (is_bias(tensor.name)) {
      write_values(file, std::vector<float>(elements(tensor), 0.0F));
      continue;
    }
    uint64_t state = testing::fnv1a(tensor.name);
    const float centre = tensor.shape.size() == 1 ? 1.0F : 0.0F;
    values.resize(elements(tensor));
    // A balanced router repeats its first experts.
    const size_t drawn =
        model.balanced && is_router(tensor.name) ? values.size() / static_cast<size_t>(model.top_k) : values.size();
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = i < drawn ? kernels::bf16_round(centre + draw(state, spread(tensor))) : values[i - drawn];
    if (is_fp8(tensor, model.weights))
      write_fp8(file, tensor, values);
    else
      write_values(file, values);
  }
  if (!file.flush())
    return error{errc::internal, "bench-1b could not be written to " + directory.string() + "; it takes up to 2.6 GB"};
  return {};
}

}  // namespace troupe
