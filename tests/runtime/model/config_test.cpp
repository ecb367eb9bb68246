#include "runtime/model/config.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <limits>

#include "tests/runtime/model/samples.hpp"

using namespace troupe;
using nlohmann::json;

namespace {

// The sentence with which a changed V3 config is refused; empty if it is accepted.
std::string refusal(const std::function<void(json&)>& change) {
  json config = samples::v3_config();
  change(config);
  const auto parsed = parse_model_config(config.dump());
  return parsed ? "" : parsed.failure().message;
}

bool mentions(const std::string& message, std::string_view part) { return message.find(part) != std::string::npos; }

json v2_lite_config() {
  json config = samples::v3_config();
  config["model_type"] = "deepseek_v2";
  config.merge_patch(json::parse(R"({"vocab_size": 102400, "hidden_size": 2048, "num_hidden_layers": 27,
    "first_k_dense_replace": 1, "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2,
    "num_experts_per_tok": 6, "n_group": 1, "topk_group": 1, "topk_method": "greedy", "scoring_func": "softmax",
    "norm_topk_prob": false, "routed_scaling_factor": 1.0, "num_attention_heads": 16, "bos_token_id": 100000,
    "eos_token_id": 100001, "rope_scaling": {"mscale": 0.707, "mscale_all_dim": 0.707}})"));
  config["q_lora_rank"] = nullptr;
  config.erase("quantization_config");
  config.erase("num_nextn_predict_layers");
  return config;
}

}  // namespace

TEST_CASE("DeepSeek-V3's config.json is read field by field") {
  const auto config = parse_model_config(samples::v3_config().dump());
  REQUIRE(config);
  CHECK(config->family == model_family::deepseek_v3);
  CHECK(config->vocab_size == 129280);
  CHECK(config->hidden_size == 7168);
  CHECK(config->num_hidden_layers == 61);
  CHECK(config->num_nextn_predict_layers == 1);
  CHECK(config->q_lora_rank == 1536);
  CHECK(config->dq() == 192);
  CHECK(config->shared_intermediate_size() == 2048);
  CHECK(config->eos_token_ids == std::vector<int32_t>{1});
  CHECK_FALSE(config->is_moe(2));
  CHECK(config->is_moe(3));
  CHECK(config->is_moe(61));
  CHECK(config->quantisation.fp8);
  CHECK_FALSE(config->quantisation.scales_ue8m0);
  CHECK(config->rope.dim == 64);
  CHECK(config->rope.factor == 40);
  CHECK(config->rope.mscale_all_dim == 1);
  const auto router = config->router();
  CHECK(router.experts == 256);
  CHECK(router.groups == 8);
  CHECK(router.groups_kept == 4);
  CHECK(router.top_k == 8);
  CHECK(router.scaling == 2.5F);
  CHECK(router.sigmoid);
  CHECK(router.normalise);
  CHECK(router.biased_selection);
}

TEST_CASE("DeepSeek-V2-Lite's config.json is read with its own defaults") {
  json text = v2_lite_config();
  text.erase("scoring_func");
  text.erase("norm_topk_prob");
  const auto config = parse_model_config(text.dump());
  REQUIRE(config);
  CHECK(config->q_lora_rank == 0);
  CHECK(config->num_nextn_predict_layers == 0);
  CHECK_FALSE(config->quantisation.fp8);
  CHECK_FALSE(config->has_router_bias());
  const auto router = config->router();
  CHECK_FALSE(router.sigmoid);
  CHECK_FALSE(router.normalise);
  CHECK_FALSE(router.group_limited);
  CHECK_FALSE(router.biased_selection);
}

TEST_CASE("A V2 router normalises or scales, never both") {
  json text = v2_lite_config();
  text["norm_topk_prob"] = true;
  text["routed_scaling_factor"] = 16;
  const auto config = parse_model_config(text.dump());
  REQUIRE(config);
  CHECK(config->router().normalise);
  CHECK(config->router().scaling == 1.0F);
}

TEST_CASE("A model without routed experts has dense layers only") {
  json text = v2_lite_config();
  text["n_routed_experts"] = nullptr;
  const auto config = parse_model_config(text.dump());
  REQUIRE(config);
  CHECK_FALSE(config->is_moe(5));
}

TEST_CASE("Fields with a family default may be missing") {
  CHECK(refusal([](json& c) {
          for (const char* f : {"moe_layer_freq", "attention_bias", "rms_norm_eps", "rope_scaling", "norm_topk_prob",
                                "scoring_func", "quantization_config"})
            c.erase(f);
        }).empty());
}

TEST_CASE("Every other missing field is refused by name") {
  for (const char* field : {"model_type",
                            "vocab_size",
                            "hidden_size",
                            "intermediate_size",
                            "moe_intermediate_size",
                            "num_hidden_layers",
                            "first_k_dense_replace",
                            "n_routed_experts",
                            "n_shared_experts",
                            "num_experts_per_tok",
                            "n_group",
                            "topk_group",
                            "topk_method",
                            "routed_scaling_factor",
                            "q_lora_rank",
                            "kv_lora_rank",
                            "qk_nope_head_dim",
                            "qk_rope_head_dim",
                            "v_head_dim",
                            "num_attention_heads",
                            "hidden_act",
                            "rope_theta",
                            "max_position_embeddings",
                            "tie_word_embeddings",
                            "bos_token_id",
                            "eos_token_id"}) {
    CAPTURE(std::string(field));
    const std::string message = refusal([&](json& c) { c.erase(field); });
    CHECK(mentions(message, field));
    CHECK(mentions(message, "missing"));
  }
}

TEST_CASE("All three spellings of rope scaling mean the same") {
  const auto yarn = samples::v3_config()["rope_scaling"];
  const auto original = parse_model_config(samples::v3_config().dump());
  json renamed = samples::v3_config();
  renamed["rope_scaling"].erase("type");
  renamed["rope_scaling"]["rope_type"] = "yarn";
  json moved = samples::v3_config();
  moved.erase("rope_scaling");
  moved.erase("rope_theta");
  moved["rope_parameters"] = yarn;
  moved["rope_parameters"]["rope_type"] = "yarn";
  moved["rope_parameters"]["rope_theta"] = 10000.0;
  REQUIRE(original);
  for (const json& text : {renamed, moved}) {
    const auto config = parse_model_config(text.dump());
    REQUIRE(config);
    CHECK(config->rope.theta == original->rope.theta);
    CHECK(config->rope.factor == original->rope.factor);
    CHECK(config->rope.mscale == original->rope.mscale);
    CHECK(config->rope.original_max_position == original->rope.original_max_position);
  }
}

TEST_CASE("Values out of range are refused by name") {
  const std::pair<const char*, json> cases[] = {{"vocab_size", 0},
                                                {"vocab_size", -5},
                                                {"vocab_size", 1e9},
                                                {"vocab_size", "many"},
                                                {"hidden_size", 2147483648},
                                                {"hidden_size", 18446744073709551615U},
                                                {"num_hidden_layers", 0},
                                                {"num_hidden_layers", 1.5},
                                                {"first_k_dense_replace", 62},
                                                {"qk_rope_head_dim", 63},
                                                {"rms_norm_eps", 0},
                                                {"rms_norm_eps", "small"},
                                                {"routed_scaling_factor", -1},
                                                {"rope_theta", 1},
                                                {"bos_token_id", 129280},
                                                {"eos_token_id", 129280},
                                                {"eos_token_id", json::array()},
                                                {"eos_token_id", -1},
                                                {"n_group", 7},
                                                {"n_group", 257},
                                                {"topk_group", 9},
                                                {"num_experts_per_tok", 129},
                                                {"moe_layer_freq", 0},
                                                {"q_lora_rank", 0},
                                                {"tie_word_embeddings", 1}};
  for (const auto& [field, value] : cases) {
    CAPTURE(std::string(field));
    CAPTURE(value.dump());
    const std::string message = refusal([&, f = field, v = value](json& c) { c[f] = v; });
    CHECK(mentions(message, field));
  }
}

TEST_CASE("noaux_tc needs two experts in every group") {
  const std::string message = refusal([](json& c) {
    c["n_group"] = 256;
    c["topk_group"] = 64;
  });
  CHECK(mentions(message, "n_group"));
}

TEST_CASE("What this runtime cannot compute is unsupported, not wrong") {
  const std::function<void(json&)> changes[] = {[](json& c) { c["model_type"] = "llama"; },
                                                [](json& c) { c["hidden_act"] = "gelu"; },
                                                [](json& c) { c["attention_bias"] = true; },
                                                [](json& c) { c["topk_method"] = "greedy"; },
                                                [](json& c) { c["rope_scaling"]["type"] = "linear"; },
                                                [](json& c) { c["quantization_config"]["quant_method"] = "awq"; },
                                                [](json& c) {
                                                  c["quantization_config"]["weight_block_size"] = {64, 64};
                                                },
                                                [](json& c) { c["quantization_config"]["scale_fmt"] = "other"; }};
  for (const auto& change : changes) {
    json config = samples::v3_config();
    change(config);
    const auto parsed = parse_model_config(config.dump());
    REQUIRE_FALSE(parsed);
    CAPTURE(parsed.failure().message);
    CHECK(parsed.failure().code == errc::unsupported);
  }
}

TEST_CASE("Text that is not a JSON object is malformed") {
  for (const char* text : {"", "[]", "7", "{", "{\"a\":1}}", "{\"vocab_size\": 1e999}", "\xFF", "{\"a\":\"\xC3\"}"}) {
    CAPTURE(std::string(text));
    const auto parsed = parse_model_config(text);
    REQUIRE_FALSE(parsed);
    CHECK(parsed.failure().code == errc::malformed);
  }
  const auto deep = parse_model_config(std::string(100000, '['));
  REQUIRE_FALSE(deep);
  CHECK(mentions(deep.failure().message, "deep"));
  std::string twice = samples::v3_config().dump();
  twice.insert(1, "\"vocab_size\": 5, ");
  const auto duplicate = parse_model_config(twice);
  REQUIRE_FALSE(duplicate);
  CHECK(mentions(duplicate.failure().message, "twice"));
}

TEST_CASE("generation_config.json adds sampling defaults and end tokens") {
  const samples::temporary_directory directory;
  const auto missing = load_model_config(directory.path());
  REQUIRE_FALSE(missing);
  CHECK(missing.failure().code == errc::not_found);

  directory.write("config.json", samples::v3_config().dump());
  const auto alone = load_model_config(directory.path());
  REQUIRE(alone);
  CHECK_FALSE(alone->generation.temperature.has_value());

  directory.write("generation_config.json",
                  R"({"do_sample": true, "temperature": 0.6, "top_p": 0.95, "eos_token_id": [1, 7]})");
  const auto both = load_model_config(directory.path());
  REQUIRE(both);
  CHECK(both->generation.temperature == 0.6F);
  CHECK(both->generation.top_p == 0.95F);
  CHECK(both->eos_token_ids == std::vector<int32_t>{1, 7});

  directory.write("generation_config.json", R"({"eos_token_id": 129280})");
  CHECK_FALSE(load_model_config(directory.path()));
  directory.write("generation_config.json", R"({"top_p": 1.5})");
  CHECK_FALSE(load_model_config(directory.path()));
}
