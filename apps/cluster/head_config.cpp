#include "apps/cluster/head_config.hpp"

#include "apps/cluster/front.hpp"
#include "runtime/key_table.hpp"

namespace troupe {

namespace {

wire_dtype travelling_dtype(const std::string& key, const std::string& text) {
  if (text == "f32") return wire_dtype::f32;
  if (text == "bf16") return wire_dtype::bf16;
  if (text == "fp8" && key == "dispatch") return wire_dtype::fp8;
  throw error{errc::invalid_argument, "`" + key + "` is '" + text + "'; it may be auto, f32" +
                                          (key == "dispatch" ? ", bf16 or fp8" : " or bf16")};
}

// A list of maps, each with a table of keys of its own.
std::vector<link_rule> read_links(const YAML::Node& list) {
  if (!list.IsSequence())
    throw error{errc::malformed, "`links` must be a list of entries like `- {from: 0, to: 1, latency_us: 50}`"};
  std::vector<link_rule> links;
  for (const auto& entry : list) {
    auto& rule = links.emplace_back();
    key_table keys;
    keys.add("from", rule.from);
    keys.add("to", rule.to);
    keys.add("latency_us", rule.shape.latency_us);
    keys.add("bandwidth_mb_s", rule.shape.bandwidth_mb_s);
    keys.add("jitter_us", rule.shape.jitter_us);
    if (auto read = keys.read(entry); !read)
      throw error{read.failure().code, "links, entry " + std::to_string(links.size()) + ": " + read.failure().message};
  }
  return links;
}

void read_rebalance(const YAML::Node& node, rebalance_settings& settings) {
  key_table keys;
  keys.add("policy", settings.policy);
  keys.add("window_ms", settings.window_ms);
  keys.add("windows", settings.windows);
  keys.add("decay", settings.decay);
  keys.add("period_ms", settings.period_ms);
  keys.add("imbalance", settings.imbalance);
  keys.add("redundant_per_layer", settings.redundant_per_layer);
  keys.add("staging_replicas", settings.staging_replicas);
  keys.add("bandwidth_mb_s", settings.bandwidth_mb_s);
  keys.add("move_mb_max", settings.move_mb_max);
  keys.add("move_timeout_ms", settings.move_timeout_ms);
  keys.add("policy_timeout_ms", settings.policy_timeout_ms);
  keys.add("by_source", settings.by_source);
  keys.add("co_activation", settings.co_activation);
  if (auto read = keys.read(node); !read) throw error{read.failure().code, "rebalance: " + read.failure().message};
  if (auto policy = make_live_policy(settings); !policy)
    throw error{policy.failure().code, "rebalance: policy: " + policy.failure().message};
}

void add_serving_keys(key_table& keys, head_config& config) {
  auto& settings = config.settings;
  keys.add("model", settings.model);
  keys.add("nodes", settings.nodes);
  keys.add("shards_per_node", settings.shards_per_node);
  keys.add("threads_per_node", settings.threads_per_node);
  keys.add("redundant_replicas", settings.redundant_replicas);
  keys.add("nodes_max", settings.nodes_max);
  keys.add("placement", settings.placement);
  keys.add("prefill_balancer", settings.prefill_balancer);
  keys.add("decode_balancer", settings.decode_balancer);
  keys.add("rebalance", [&settings](const YAML::Node& node) { read_rebalance(node, settings.rebalance); });
  keys.add("selection", [&settings](const YAML::Node& node) {
    const auto selection = replica_selection_from_name(node.as<std::string>());
    if (!selection)
      throw error{errc::invalid_argument,
                  "`selection` is '" + node.as<std::string>() + "'; it may be first, nearest, even or weighted"};
    settings.selection = *selection;
  });
  keys.add("rows_max", settings.rows_max);
  keys.add("chunk", settings.chunk);
  keys.add("kv_blocks", settings.kv_blocks);
  keys.add("sequences_max", settings.sequences_max);
  keys.add("dispatch_deadline_ms", settings.dispatch_deadline_ms);
  keys.add("heartbeat_ms", settings.heartbeat_ms);
  keys.add("verdict_ms", settings.verdict_ms);
  keys.add("payload_checksum", settings.payload_checksum);
  keys.add("fault_cut_ms", settings.fault_cut_ms);
  keys.add("schedule", config.schedule);
  keys.add("transports",
           [&settings](const YAML::Node& node) { settings.transports = node.IsNull() ? "" : node.as<std::string>(); });
  keys.add("links", [&settings](const YAML::Node& node) { settings.links = read_links(node); });
  keys.add("profile", [&config](const YAML::Node& node) {
    const auto text = node.as<std::string>();
    config.choose_profile = text == "auto";
    if (config.choose_profile) return;
    const auto profile = kernels::profile_from_name(text);
    if (!profile) throw error{errc::invalid_argument, "`profile` is '" + text + "'; it may be auto, f32 or amx_bf16"};
    config.settings.profile = *profile;
  });
  keys.add("dispatch", [&config](const YAML::Node& node) {
    const auto text = node.as<std::string>();
    config.default_dispatch = text == "auto";
    if (text != "auto") config.settings.dispatch = travelling_dtype("dispatch", text);
  });
  keys.add("combine", [&config](const YAML::Node& node) {
    const auto text = node.as<std::string>();
    config.default_combine = text == "auto";
    if (text != "auto") config.settings.combine = travelling_dtype("combine", text);
  });
}

void add_front_keys(key_table& keys, head_config& config) {
  keys.add("model_name", config.model_name);
  keys.add("default_max_tokens", config.default_max_tokens);
  keys.add("requests_max", config.requests_max);
  keys.add("spawn_nodes", config.spawn_nodes);
  keys.add("listen", config.listen);
  keys.add("join_port", config.join_port);
  keys.add("http_address", config.http_address);
  keys.add("http_port", config.http_port);
  keys.add("api_key_file", config.api_key_file);
  keys.add("chat_suffix", config.chat.generation_suffix);
  keys.add("chat_template", [&config](const YAML::Node& node) {
    const auto text = node.as<std::string>();
    if (text != "v3" && text != "r1")
      throw error{errc::invalid_argument, "`chat_template` is '" + text + "'; it may be v3 or r1"};
    config.chat.style = text == "v3" ? chat_style::v3 : chat_style::r1;
  });
}

}  // namespace

result<head_config> load_head_config(const std::filesystem::path& file) {
  const auto in_file = [&](const error& failure) {
    return error{failure.code, file.string() + ": " + failure.message};
  };
  if (!std::filesystem::is_regular_file(file))
    return error{errc::not_found, "there is no configuration file " + file.string()};
  head_config config;
  key_table keys;
  add_serving_keys(keys, config);
  add_front_keys(keys, config);
  try {
    if (auto read = keys.read(YAML::LoadFile(file.string())); !read) return in_file(read.failure());
  } catch (const YAML::Exception& failure) {
    return in_file({errc::malformed, std::string("this is not YAML: ") + failure.what()});
  }
  const auto resolve = [&](std::string& path) {
    if (!path.empty() && std::filesystem::path(path).is_relative())
      path = std::filesystem::weakly_canonical(file.parent_path() / path).string();
  };
  if (config.settings.model.empty())
    return in_file({errc::invalid_argument, "`model` is missing; give a model directory"});
  resolve(config.settings.model);
  auto cut = find_schedule(config.schedule, file.parent_path());
  if (!cut) return in_file(cut.failure());
  config.settings.schedule = *std::move(cut);
  resolve(config.api_key_file);
  if (config.model_name.empty()) config.model_name = std::filesystem::path(config.settings.model).filename().string();
  if (auto valid = validate(config.settings); !valid) return in_file(valid.failure());
  return config;
}

}  // namespace troupe
