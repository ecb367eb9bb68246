// Against examples/tiny-moe, whose goldens come from other implementations.
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>

#include "runtime/model/chat_template.hpp"
#include "runtime/model/config.hpp"
#include "runtime/model/safetensors.hpp"
#include "runtime/model/tokenizer.hpp"

using namespace troupe;
using nlohmann::json;
using ids_t = std::vector<int32_t>;

namespace {

const std::filesystem::path directory = std::filesystem::path(TROUPE_SOURCE_DIR) / "examples" / "tiny-moe";

// Whether the model is there; says so when it is not.
bool present(const char* file) {
  if (std::filesystem::exists(directory / file)) return true;
  MESSAGE("skipped: there is no ", (directory / file).string());
  return false;
}

}  // namespace

TEST_CASE("The example model's tokenizer gives the golden ids") {
  if (!present("golden.json") || !present("tokenizer.json")) return;
  const auto source = tokenizer::load(directory);
  REQUIRE(source);
  const json golden = json::parse(std::ifstream(directory / "golden.json"));
  REQUIRE(golden["tokenizer"].size() > 0);
  for (const json& entry : golden["tokenizer"]) {
    const auto text = entry["text"].get<std::string>();
    CAPTURE(text);
    CHECK(source->encode(text) == entry["ids"].get<ids_t>());
    CHECK(source->decode(entry["ids"].get<ids_t>()) == text);
  }
  for (const json& prompt : golden["prompts"]) {
    const auto text = prompt["text"].get<std::string>();
    CAPTURE(text);
    CHECK(source->encode(text) == prompt["ids"].get<ids_t>());
  }
}

TEST_CASE("The example model's config is accepted") {
  if (!present("config.json")) return;
  const auto config = load_model_config(directory);
  REQUIRE(config);
  CHECK(config->family == model_family::deepseek_v3);
  CHECK(config->quantisation.fp8);
  CHECK(config->rope.factor == 0);
}

TEST_CASE("The example model's checkpoint holds the tensors that its config describes") {
  if (!present("config.json") || !present("model.safetensors")) return;
  const auto config = load_model_config(directory);
  const auto weights = checkpoint::open(directory);
  REQUIRE(config);
  REQUIRE(weights);
  const tensor_view* embedding = weights->find("model.embed_tokens.weight");
  REQUIRE(embedding != nullptr);
  CHECK(embedding->shape == std::vector<int64_t>{config->vocab_size, config->hidden_size});
  CHECK(embedding->dtype == tensor_dtype::bf16);
  for (int layer = 0; layer < config->num_hidden_layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".mlp.";
    CHECK((weights->find(prefix + "gate.weight") != nullptr) == config->is_moe(layer));
    const tensor_view* down =
        weights->find(prefix + (config->is_moe(layer) ? "experts.0.down_proj.weight" : "down_proj.weight"));
    REQUIRE(down != nullptr);
    CHECK(down->dtype == tensor_dtype::f8_e4m3);
    CHECK(down->shape[0] == config->hidden_size);
  }
}
