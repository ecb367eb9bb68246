// Random damage to valid files: whatever comes out, nothing may crash, hang or read out of bounds.
#include <doctest/doctest.h>

#include <chrono>
#include <functional>

#include "runtime/model/config.hpp"
#include "runtime/model/safetensors_header.hpp"
#include "runtime/model/tokenizer.hpp"
#include "tests/runtime/model/samples.hpp"

using namespace troupe;

namespace {

constexpr uint32_t seed = 20260801;

// One to four small changes; never longer than twice the text.
std::string damage(std::string text, std::mt19937& random) {
  static constexpr std::string_view interesting[] = {
      "0",    "-1", "9", "18446744073709551615", "1e400", "null", "[", "]", "{", "}", "\"", ",", ":", "\\u0000", "\xFF",
      "true", "\\", "\n"};
  for (uint32_t changes = 1 + random() % 4; changes > 0 && !text.empty(); --changes) {
    const size_t at = random() % text.size();
    const size_t bytes = random() % std::min<size_t>(16, text.size() - at) + 1;
    switch (random() % 5) {
      case 0: text[at] = static_cast<char>(random()); break;
      case 1: text.erase(at, bytes); break;
      case 2: text.insert(at, text.substr(at, bytes)); break;
      case 3: text.insert(at, interesting[random() % std::size(interesting)]); break;
      default: text.replace(at, 1, interesting[random() % std::size(interesting)]); break;
    }
  }
  return text;
}

// Calls `read` with damaged copies, for at most half a second.
void damage_and_read(const std::string& valid, int rounds, const std::function<bool(const std::string&)>& read) {
  INFO("seed ", seed);
  std::mt19937 random(seed);
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  int accepted = 0;
  int round = 0;
  for (; round < rounds && std::chrono::steady_clock::now() < end; ++round)
    accepted += read(damage(valid, random)) ? 1 : 0;
  CHECK(round > 0);
  CHECK(accepted < round);
}

}  // namespace

TEST_CASE("A damaged config.json never crashes the reader") {
  damage_and_read(samples::v3_config().dump(), 3000, [](const std::string& text) {
    const auto config = parse_model_config(text);
    if (!config) {
      CHECK_FALSE(config.failure().message.empty());
      return false;
    }
    if (config->n_routed_experts > 0) CHECK(config->router().top_k <= config->router().experts);
    return true;
  });
}

TEST_CASE("A damaged safetensors file never gives a tensor outside it") {
  const std::string valid = samples::safetensors_file(
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
      R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]},)"
      R"("c":{"dtype":"F8_E4M3","shape":[],"data_offsets":[22,23]}})",
      23);
  damage_and_read(valid, 20000, [](const std::string& text) {
    const auto entries = parse_safetensors_header(std::as_bytes(std::span(text)));
    if (!entries) return false;
    for (const auto& entry : *entries) {
      REQUIRE(entry.begin <= entry.end);
      REQUIRE(entry.end <= text.size());
    }
    return true;
  });
}

TEST_CASE("A damaged tokenizer.json never crashes the reader, and what it accepts still encodes") {
  const std::string valid = samples::tokenizer_json(samples::few_merges()).dump();
  damage_and_read(valid, 1000, [](const std::string& text) {
    const auto source = tokenizer::parse(text, samples::tokenizer_settings());
    if (!source) return false;
    const std::string sample = "hello wörld 你好 123 \n\n x";
    CHECK(source->decode(source->encode(sample, {.parse_added = false, .add_bos = false})) == sample);
    return true;
  });
}

TEST_CASE("Random regular expressions never crash the splitter") {
  nlohmann::json file = samples::tokenizer_json({});
  const std::string pattern = file["pre_tokenizer"]["pretokenizers"][2]["pattern"]["Regex"];
  damage_and_read(pattern, 500, [&](const std::string& text) {
    file["pre_tokenizer"]["pretokenizers"][2]["pattern"]["Regex"] = text;
    std::string dumped;
    try {
      dumped = file.dump();
    } catch (const nlohmann::json::exception&) {
      return false;  // not UTF-8, so no JSON can hold it
    }
    const auto source = tokenizer::parse(dumped, "");
    if (!source) return false;
    const std::string sample = "hello wörld 你好 123 \n\n x";
    CHECK(source->decode(source->encode(sample)) == sample);
    return true;
  });
}
