// Small valid files that the tests of runtime/model start from.
#pragma once

#include <nlohmann/json.hpp>
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::samples {

// A directory that lives as long as the object.
class temporary_directory {
 public:
  temporary_directory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "troupe-model-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  temporary_directory(const temporary_directory&) = delete;
  temporary_directory& operator=(const temporary_directory&) = delete;
  ~temporary_directory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }
  void write(std::string_view name, std::string_view bytes) const {
    std::ofstream stream(path_ / name, std::ios::binary);
    stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

 private:
  std::filesystem::path path_;
};

// config.json of DeepSeek-V3, the fields that matter.
inline nlohmann::json v3_config() {
  return nlohmann::json::parse(R"({
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "torch_dtype": "bfloat16",
    "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_nextn_predict_layers": 1, "first_k_dense_replace": 3, "moe_layer_freq": 1,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4,
    "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": true, "routed_scaling_factor": 2.5,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "num_attention_heads": 128, "num_key_value_heads": 128, "attention_bias": false, "hidden_act": "silu",
    "rms_norm_eps": 1e-06, "rope_theta": 10000, "max_position_embeddings": 163840, "tie_word_embeddings": false,
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32,
                     "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                            "weight_block_size": [128, 128]},
    "bos_token_id": 0, "eos_token_id": 1})");
}

// One safetensors file of `header` and `data_bytes` bytes 0, 1, 2, ...
inline std::string safetensors_file(std::string_view header, size_t data_bytes) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  file += header;
  for (size_t i = 0; i < data_bytes; ++i) file += static_cast<char>(i);
  return file;
}

// The key of a byte string in tokenizer.json.
inline std::string vocabulary_key(std::string_view bytes) {
  std::string key;
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    unsigned point = 0x100;
    for (unsigned b = 0; b < byte; ++b) point += (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD) ? 0 : 1;
    if ((byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD)) point = byte;
    if (point < 0x80) {
      key += static_cast<char>(point);
    } else {
      key += static_cast<char>(0xC0 | point >> 6);
      key += static_cast<char>(0x80 | (point & 0x3F));
    }
  }
  return key;
}

inline const char* bos = "<｜begin▁of▁sentence｜>";
inline const char* eos = "<｜end▁of▁sentence｜>";

// tokenizer.json with V3's splits: ids 0 BOS, 1 EOS, 2 + b for byte b, from 258 one id a merge, and after
// them the markers of the chat templates, not special.
inline nlohmann::json tokenizer_json(const std::vector<std::pair<std::string, std::string>>& merges) {
  using nlohmann::json;
  json vocab = {{bos, 0}, {eos, 1}};
  json added = json::array();
  const auto add = [&](std::string_view content, int id, bool special) {
    added.push_back({{"id", id},
                     {"content", content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", special}});
  };
  for (int byte = 0; byte < 256; ++byte) vocab[vocabulary_key(std::string(1, static_cast<char>(byte)))] = 2 + byte;
  json rules = json::array();
  int next = 258;
  for (const auto& [left, right] : merges) {
    vocab.emplace(vocabulary_key(left + right), next++);
    rules.push_back(vocabulary_key(left) + " " + vocabulary_key(right));
  }
  add(bos, 0, true);
  add(eos, 1, true);
  for (const char* marker :
       {"<｜User｜>", "<｜Assistant｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>",
        "<｜tool▁output▁end｜>", "<｜tool▁sep｜>", "<think>", "</think>"}) {
    add(marker, next++, false);
  }
  const auto split = [](std::string_view regex) {
    return json{{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}};
  };
  const json steps = {
      split(R"(\p{N}{1,3})"),
      split("[一-龥぀-ゟ゠-ヿ]+"),
      split(R"re([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?)re"
            R"re([\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re"),
      {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}}};
  return {{"version", "1.0"},
          {"added_tokens", added},
          {"normalizer", {{"type", "Sequence"}, {"normalizers", json::array()}}},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", steps}}},
          {"post_processor", {{"type", "ByteLevel"}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"byte_fallback", false},
            {"vocab", vocab},
            {"merges", rules}}}};
}

// Merges that make "he", "ll", "hell", "hello", " w", "é" and "你".
inline std::vector<std::pair<std::string, std::string>> few_merges() {
  return {{"h", "e"}, {"l", "l"},       {"he", "ll"},     {"hell", "o"},
          {" ", "w"}, {"\xC3", "\xA9"}, {"\xE4", "\xBD"}, {"\xE4\xBD", "\xA0"}};
}

inline std::string tokenizer_settings() {
  return nlohmann::json{{"add_bos_token", true}, {"bos_token", bos}, {"eos_token", {{"content", eos}}}}.dump();
}

// Random text of all kinds of characters, valid UTF-8.
inline std::string random_text(std::mt19937& random, size_t characters) {
  const auto below = [&](uint32_t limit) { return static_cast<uint32_t>(random() % limit); };
  std::string text;
  for (size_t i = 0; i < characters; ++i) {
    uint32_t point = 0x20 + below(0x5F);
    const uint32_t kind = below(10);
    if (kind == 0) point = below(0x20);
    if (kind == 1) point = 0x80 + below(0x780);
    if (kind == 2) point = 0x3000 + below(0x7000);
    if (kind == 3) point = 0x10000 + below(0x100000);
    if (kind == 4) point = " \n\r\t"[below(4)];
    if (point < 0x80) {
      text += static_cast<char>(point);
    } else if (point < 0x800) {
      text += static_cast<char>(0xC0 | point >> 6);
    } else if (point < 0x10000) {
      text += static_cast<char>(0xE0 | point >> 12);
    } else {
      text += static_cast<char>(0xF0 | point >> 18);
      text += static_cast<char>(0x80 | (point >> 12 & 0x3F));
    }
    if (point >= 0x800) text += static_cast<char>(0x80 | (point >> 6 & 0x3F));
    if (point >= 0x80) text += static_cast<char>(0x80 | (point & 0x3F));
  }
  return text;
}

}  // namespace troupe::samples
