#include "runtime/model/config.hpp"

#include <algorithm>
#include <string>

#include "runtime/model/json_text.hpp"

namespace troupe {

namespace {

using nlohmann::json;

constexpr size_t config_bytes_max = size_t{4} << 20;

// Limits far above every released model. They are chosen so that the product of any two widths but
// the vocabulary's fits an int; a matrix of vocab_size x hidden_size needs 64-bit offsets.
constexpr int vocab_max = 1 << 22;
constexpr int hidden_max = 1 << 17;
constexpr int intermediate_max = 1 << 20;
constexpr int layers_max = 1024;
constexpr int mtp_layers_max = 16;
constexpr int positions_max = 1 << 24;
constexpr int experts_max = 1 << 14;
constexpr int shared_experts_max = 64;
constexpr int top_k_max = 256;
constexpr int heads_max = 1024;
constexpr int rank_max = 1 << 16;
constexpr int head_dim_max = 1 << 12;
constexpr size_t eos_ids_max = 16;

// One id or a list of them, each in [0, vocab_size).
std::vector<int32_t> read_ids(json_fields& fields, const char* field, int vocab_size) {
  const json* found = fields.get(field);
  std::vector<int32_t> ids;
  if (found == nullptr) return ids;
  const json list = found->is_array() ? *found : json::array({*found});
  fields.require(!list.empty() && list.size() <= eos_ids_max, errc::malformed,
                 std::string("\"") + field + "\" must hold from 1 to " + std::to_string(eos_ids_max) + " ids");
  for (const json& id : list) {
    const bool valid = id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(vocab_size);
    fields.require(valid, errc::malformed,
                   std::string("\"") + field + "\" must be a token id below " + std::to_string(vocab_size) +
                       ", or a list of them");
    if (valid && ids.size() < eos_ids_max) ids.push_back(id.get<int32_t>());
  }
  return ids;
}

void sort_unique(std::vector<int32_t>& ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

void read_architecture(json_fields& fields, model_config& config) {
  const std::string type = fields.string("model_type");
  if (type == "deepseek_v2") {
    config.family = model_family::deepseek_v2;
  } else {
    fields.require(type == "deepseek_v3", errc::unsupported,
                   "\"model_type\" " + shown(type) + " is not supported; deepseek_v3 and deepseek_v2 are");
  }
  fields.require(fields.string("hidden_act") == "silu", errc::unsupported, "only \"hidden_act\" \"silu\" is supported");
  fields.require(!fields.boolean("attention_bias", false), errc::unsupported,
                 "\"attention_bias\" true is not supported");
}

void read_shape(json_fields& fields, model_config& config) {
  config.vocab_size = fields.integer("vocab_size", 1, vocab_max);
  config.hidden_size = fields.integer("hidden_size", 1, hidden_max);
  config.intermediate_size = fields.integer("intermediate_size", 1, intermediate_max);
  config.num_hidden_layers = fields.integer("num_hidden_layers", 1, layers_max);
  config.num_nextn_predict_layers = fields.integer("num_nextn_predict_layers", 0, mtp_layers_max, 0);
  config.max_position_embeddings = fields.integer("max_position_embeddings", 1, positions_max);
  config.rms_norm_eps = static_cast<float>(fields.number("rms_norm_eps", 1e-12, 0.1, 1e-6));
  config.tie_word_embeddings = fields.boolean("tie_word_embeddings");
  config.bos_token_id = fields.integer("bos_token_id", 0, config.vocab_size - 1);
  fields.require(fields.has("eos_token_id"), errc::malformed, "the field \"eos_token_id\" is missing");
  config.eos_token_ids = read_ids(fields, "eos_token_id", config.vocab_size);
  sort_unique(config.eos_token_ids);
}

void read_attention(json_fields& fields, model_config& config) {
  config.num_attention_heads = fields.integer("num_attention_heads", 1, heads_max);
  config.kv_lora_rank = fields.integer("kv_lora_rank", 1, rank_max);
  config.qk_nope_head_dim = fields.integer("qk_nope_head_dim", 1, head_dim_max);
  config.qk_rope_head_dim = fields.integer("qk_rope_head_dim", 2, head_dim_max);
  config.v_head_dim = fields.integer("v_head_dim", 1, head_dim_max);
  fields.require(config.qk_rope_head_dim % 2 == 0, errc::malformed,
                 "\"qk_rope_head_dim\" must be even, since rotation works on pairs");
  // Null says that queries are not compressed; a missing field says nothing.
  config.q_lora_rank =
      fields.integer("q_lora_rank", 1, rank_max, fields.is_null("q_lora_rank") ? std::optional(0) : std::nullopt);
}

void read_router(json_fields& fields, model_config& config) {
  const bool v3 = config.family == model_family::deepseek_v3;
  const std::string method = fields.string("topk_method");
  const std::string scoring = fields.string("scoring_func", v3 ? "sigmoid" : "softmax");
  config.sigmoid_scores = scoring == "sigmoid";
  if (method == "noaux_tc" && scoring == "sigmoid") {
    config.method = topk_method::noaux_tc;
  } else if (method == "greedy" && scoring == "softmax") {
    config.method = topk_method::greedy;
  } else if (method == "group_limited_greedy" && scoring == "softmax") {
    config.method = topk_method::group_limited_greedy;
  } else {
    fields.refuse(errc::unsupported, "\"topk_method\" " + shown(method) + " with \"scoring_func\" " + shown(scoring) +
                                         " is not supported; noaux_tc goes with sigmoid, greedy and "
                                         "group_limited_greedy go with softmax");
  }
  config.norm_topk_prob = fields.boolean("norm_topk_prob", v3);
  config.routed_scaling_factor = static_cast<float>(fields.number("routed_scaling_factor", 1e-6, 1e6));
  config.num_experts_per_tok = fields.integer("num_experts_per_tok", 1, top_k_max);
  config.n_group = fields.integer("n_group", 1, config.n_routed_experts);
  config.topk_group = fields.integer("topk_group", 1, config.n_group);
  if (fields.failure()) return;

  const int group_size = config.n_routed_experts / config.n_group;
  fields.require(config.n_routed_experts % config.n_group == 0, errc::malformed,
                 "\"n_group\" " + std::to_string(config.n_group) + " must divide \"n_routed_experts\" " +
                     std::to_string(config.n_routed_experts));
  const bool grouped = config.method != topk_method::greedy;
  const int candidates = grouped ? group_size * config.topk_group : config.n_routed_experts;
  fields.require(config.num_experts_per_tok <= candidates, errc::malformed,
                 "\"num_experts_per_tok\" " + std::to_string(config.num_experts_per_tok) + " exceeds the " +
                     std::to_string(candidates) + " experts a token may choose from (see \"topk_group\")");
  fields.require(config.method != topk_method::noaux_tc || config.n_group == 1 || group_size >= 2, errc::malformed,
                 "\"n_group\" leaves one expert a group, but noaux_tc scores a group by its best two");
}

void read_experts(json_fields& fields, model_config& config) {
  if (fields.is_null("n_routed_experts")) return;
  config.n_routed_experts = fields.integer("n_routed_experts", 1, experts_max);
  config.n_shared_experts = fields.integer("n_shared_experts", 0, shared_experts_max,
                                           fields.is_null("n_shared_experts") ? std::optional(0) : std::nullopt);
  config.moe_intermediate_size = fields.integer("moe_intermediate_size", 1, hidden_max);
  config.first_k_dense_replace = fields.integer("first_k_dense_replace", 0, config.num_hidden_layers);
  config.moe_layer_freq = fields.integer("moe_layer_freq", 1, layers_max, 1);
  read_router(fields, config);
  fields.require(
      config.shared_intermediate_size() <= intermediate_max, errc::malformed,
      "\"n_shared_experts\" times \"moe_intermediate_size\" must not exceed " + std::to_string(intermediate_max));
}

// All three spellings (MODEL.md 2.2): rope_scaling with "type" or "rope_type", and rope_parameters,
// which also holds the base.
void read_rope(json_fields& fields, model_config& config) {
  kernels::rope_parameters& rope = config.rope;
  rope.dim = config.qk_rope_head_dim;
  constexpr double theta_max = 1e12;
  const bool moved = fields.has("rope_parameters");
  const json* found = fields.get(moved ? "rope_parameters" : "rope_scaling");
  const json empty = json::object();
  json_fields scaling(found != nullptr ? *found : empty,
                      std::string("config.json: ") + (moved ? "rope_parameters" : "rope_scaling"));
  rope.theta = moved && scaling.has("rope_theta") ? scaling.number("rope_theta", 1.001, theta_max)
                                                  : fields.number("rope_theta", 1.001, theta_max);
  if (found != nullptr) {
    const std::string kind = scaling.has("rope_type") ? scaling.string("rope_type") : scaling.string("type");
    if (kind == "yarn") {
      rope.factor = scaling.number("factor", 1, 1e6);
      rope.original_max_position = scaling.number("original_max_position_embeddings", 1, positions_max);
      rope.beta_fast = scaling.number("beta_fast", 1e-3, 1e6, 32);
      rope.beta_slow = scaling.number("beta_slow", 1e-3, 1e6, 1);
      rope.mscale = scaling.number("mscale", 0, 100, 1);
      rope.mscale_all_dim = scaling.number("mscale_all_dim", 0, 100, 0);
      scaling.require(rope.beta_fast > rope.beta_slow, errc::malformed, "\"beta_fast\" must exceed \"beta_slow\"");
      scaling.require(!scaling.has("attention_factor"), errc::unsupported, "\"attention_factor\" is not supported");
    } else {
      scaling.require(kind == "default", errc::unsupported,
                      "the type " + shown(kind) + " is not supported; yarn and default are");
    }
  }
  fields.adopt(scaling.failure());
}

void read_quantisation(json_fields& fields, model_config& config) {
  const json* found = fields.get("quantization_config");
  if (found == nullptr) return;
  json_fields quantisation(*found, "config.json: quantization_config");
  const std::string method = quantisation.string("quant_method");
  quantisation.require(method == "fp8", errc::unsupported,
                       "\"quant_method\" " + shown(method) + " is not supported; fp8 is");
  quantisation.require(quantisation.string("fmt", "e4m3") == "e4m3", errc::unsupported,
                       "only \"fmt\" \"e4m3\" is supported");
  quantisation.require(quantisation.string("activation_scheme", "dynamic") == "dynamic", errc::unsupported,
                       "only \"activation_scheme\" \"dynamic\" is supported");
  const json* block = quantisation.get("weight_block_size");
  quantisation.require(
      block != nullptr && *block == json::array({quantisation_config::block_rows, quantisation_config::block_columns}),
      errc::unsupported, "only \"weight_block_size\" [128, 128] is supported");
  const std::string scales = quantisation.string("scale_fmt", "");
  quantisation.require(scales.empty() || scales == "ue8m0", errc::unsupported,
                       "\"scale_fmt\" " + shown(scales) + " is not supported; ue8m0 is");
  config.quantisation = {.fp8 = true, .scales_ue8m0 = scales == "ue8m0"};
  fields.adopt(quantisation.failure());
}

}  // namespace

std::string_view name(model_family family) {
  return family == model_family::deepseek_v2 ? "deepseek_v2" : "deepseek_v3";
}

bool model_config::is_moe(int layer) const {
  return n_routed_experts > 0 && layer >= first_k_dense_replace && layer % moe_layer_freq == 0;
}

kernels::router_parameters model_config::router() const {
  TROUPE_CHECK(n_routed_experts > 0, "a dense model has no router");
  kernels::router_parameters router;
  router.experts = n_routed_experts;
  router.top_k = num_experts_per_tok;
  router.sigmoid = sigmoid_scores;
  router.group_limited = method != topk_method::greedy;
  router.biased_selection = method == topk_method::noaux_tc;
  router.groups = router.group_limited ? n_group : 1;
  router.groups_kept = router.group_limited ? topk_group : 1;
  // Of a single expert there is nothing to normalise; the published code skips it then.
  router.normalise = norm_topk_prob && num_experts_per_tok > 1;
  const bool either_or = family == model_family::deepseek_v2;
  router.scaling = either_or && router.normalise ? 1.0F : routed_scaling_factor;
  return router;
}

result<model_config> parse_model_config(std::string_view text) {
  const result<json> parsed = parse_json(text, "config.json");
  if (!parsed) return parsed.failure();
  json_fields fields(*parsed, "config.json");
  model_config config;
  using reader = void (*)(json_fields&, model_config&);
  for (const reader read :
       {read_architecture, read_shape, read_attention, read_experts, read_rope, read_quantisation}) {
    read(fields, config);
    if (fields.failure()) return *fields.failure();
  }
  return config;
}

result<generation_config> parse_generation_config(std::string_view text) {
  const result<json> parsed = parse_json(text, "generation_config.json");
  if (!parsed) return parsed.failure();
  json_fields fields(*parsed, "generation_config.json");
  generation_config config;
  if (fields.has("temperature")) config.temperature = static_cast<float>(fields.number("temperature", 0, 100));
  if (fields.has("top_p")) config.top_p = static_cast<float>(fields.number("top_p", 1e-6, 1));
  if (fields.has("top_k")) config.top_k = fields.integer("top_k", 0, vocab_max);
  if (fields.has("do_sample") && !fields.boolean("do_sample")) config.temperature = 0.0F;
  config.eos_token_ids = read_ids(fields, "eos_token_id", vocab_max);
  if (fields.failure()) return *fields.failure();
  return config;
}

result<model_config> load_model_config(const std::filesystem::path& directory) {
  const result<std::string> text = read_text_file(directory / "config.json", config_bytes_max);
  if (!text) return text.failure();
  result<model_config> config = parse_model_config(*text);
  if (!config) return config;
  const result<std::string> suggested = read_text_file(directory / "generation_config.json", config_bytes_max);
  if (!suggested) {
    if (suggested.failure().code == errc::not_found) return config;
    return suggested.failure();
  }
  result<generation_config> generation = parse_generation_config(*suggested);
  if (!generation) return generation.failure();
  for (const int32_t id : generation->eos_token_ids) {
    if (id >= config->vocab_size) {
      return error{errc::malformed, "generation_config.json: \"eos_token_id\" " + std::to_string(id) +
                                        " is not below the model's \"vocab_size\" " +
                                        std::to_string(config->vocab_size) + "."};
    }
    config->eos_token_ids.push_back(id);
  }
  sort_unique(config->eos_token_ids);
  config->generation = std::move(*generation);
  return config;
}

}  // namespace troupe
