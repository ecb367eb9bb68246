#include "tests/bench/bench_1b.hpp"

#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>
#include <vector>

#include "kernels/compute.hpp"
#include "tests/small_model.hpp"

namespace troupe {

namespace {

nlohmann::json bench_config() {
  auto config = testing::t1_config();
  config["vocab_size"] = 32768;
  config["hidden_size"] = 1024;
  config["intermediate_size"] = 2816;
  config["moe_intermediate_size"] = 512;
  config["num_hidden_layers"] = 12;
  config["first_k_dense_replace"] = 1;
  config["num_attention_heads"] = 16;
  config["num_key_value_heads"] = 16;
  config["q_lora_rank"] = 384;
  config["kv_lora_rank"] = 512;
  config["qk_nope_head_dim"] = 128;
  config["qk_rope_head_dim"] = 64;
  config["v_head_dim"] = 128;
  config["n_routed_experts"] = 64;
  config["num_experts_per_tok"] = 8;
  config["n_group"] = 1;
  config["topk_group"] = 1;
  config["rope_scaling"] = nullptr;
  config["max_position_embeddings"] = 32768;
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

}  // namespace

result<void> write_bench_1b(const std::filesystem::path& directory) {
  std::filesystem::create_directories(directory);
  const auto config = bench_config();
  std::ofstream(directory / "config.json") << config.dump(1);
  write_tokenizer(directory);
  const auto tensors = testing::v3_tensors(config);
  const auto is_bias = [](const std::string& name) { return name.ends_with("e_score_correction_bias"); };
  nlohmann::json header;
  uint64_t offset = 0;
  for (const auto& tensor : tensors) {
    uint64_t count = 1;
    for (const int64_t extent : tensor.shape) count *= static_cast<uint64_t>(extent);
    const uint64_t bytes = count * (is_bias(tensor.name) ? 4 : 2);
    header[tensor.name] = {{"dtype", is_bias(tensor.name) ? "F32" : "BF16"},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  std::ofstream file(directory / "model.safetensors", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), 8);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  std::vector<uint16_t> values;
  for (const auto& tensor : tensors) {
    uint64_t count = 1;
    for (const int64_t extent : tensor.shape) count *= static_cast<uint64_t>(extent);
    uint64_t state = testing::fnv1a(tensor.name);
    const float centre = tensor.shape.size() == 1 && !is_bias(tensor.name) ? 1.0F : 0.0F;
    if (is_bias(tensor.name)) {
      const std::vector<float> bias(count, 0.0F);
      file.write(reinterpret_cast<const char*>(bias.data()), static_cast<std::streamsize>(count * 4));
      continue;
    }
    values.resize(count);
    for (auto& value : values) value = kernels::bf16_round(centre + draw(state, spread(tensor)));
    file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(count * 2));
  }
  if (!file.flush())
    return error{errc::internal, "bench-1b could not be written to " + directory.string() + "; it takes 2.6 GB"};
  return {};
}

}  // namespace troupe
