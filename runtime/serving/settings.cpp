#include "runtime/serving/settings.hpp"

#include <nlohmann/json.hpp>

#include "runtime/serving/shard_load.hpp"

namespace troupe {

namespace {

error out_of_range(std::string_view field, uint64_t value, uint64_t low, uint64_t high) {
  return {errc::invalid_argument, std::string(field) + " is " + std::to_string(value) + "; it must be between " +
                                      std::to_string(low) + " and " + std::to_string(high)};
}

nlohmann::json to_document(const std::vector<link_rule>& links) {
  auto list = nlohmann::json::array();
  for (const auto& rule : links)
    list.push_back({{"from", rule.from},
                    {"to", rule.to},
                    {"latency_us", rule.shape.latency_us},
                    {"bandwidth_mb_s", rule.shape.bandwidth_mb_s},
                    {"jitter_us", rule.shape.jitter_us}});
  return list;
}

std::vector<link_rule> links_of(const nlohmann::json& list) {
  std::vector<link_rule> links;
  for (const auto& entry : list) {
    link_rule rule;
    entry.at("from").get_to(rule.from);
    entry.at("to").get_to(rule.to);
    entry.at("latency_us").get_to(rule.shape.latency_us);
    entry.at("bandwidth_mb_s").get_to(rule.shape.bandwidth_mb_s);
    entry.at("jitter_us").get_to(rule.shape.jitter_us);
    links.push_back(rule);
  }
  return links;
}

// Names and commas as in UCX_TLS; whether the machine has them, UCX says.
result<void> validate_transports(const std::string& transports) {
  constexpr size_t length_max = 128;
  const auto allowed = "abcdefghijklmnopqrstuvwxyz0123456789_,^";
  if (transports.size() > length_max || transports.find_first_not_of(allowed) != std::string::npos)
    return error{errc::invalid_argument, "transports is '" + transports.substr(0, length_max) +
                                             "'; it must be a list like posix,cma,tcp, or empty"};
  return {};
}

}  // namespace

std::string_view name(wire_dtype dtype) {
  switch (dtype) {
    case wire_dtype::f32: return "f32";
    case wire_dtype::bf16: return "bf16";
    case wire_dtype::fp8: return "fp8";
  }
  return "unknown";
}

std::string serving_settings::to_json() const {
  return nlohmann::json{{"model", model},
                        {"profile", kernels::name(profile)},
                        {"dispatch", static_cast<int>(dispatch)},
                        {"combine", static_cast<int>(combine)},
                        {"nodes", nodes},
                        {"nodes_max", nodes_max},
                        {"shards_per_node", shards_per_node},
                        {"threads_per_node", threads_per_node},
                        {"redundant_replicas", redundant_replicas},
                        {"placement", placement},
                        {"selection", name(selection)},
                        {"rebalance", troupe::to_json(rebalance)},
                        {"prefill_balancer", prefill_balancer},
                        {"decode_balancer", decode_balancer},
                        {"schedule", to_yaml(schedule)},
                        {"rows_max", rows_max},
                        {"chunk", chunk},
                        {"kv_blocks", kv_blocks},
                        {"sequences_max", sequences_max},
                        {"dispatch_deadline_ms", dispatch_deadline_ms},
                        {"heartbeat_ms", heartbeat_ms},
                        {"verdict_ms", verdict_ms},
                        {"payload_checksum", payload_checksum},
                        {"fault_cut_ms", fault_cut_ms},
                        {"transports", transports},
                        {"links", to_document(links)}}
      .dump();
}

result<serving_settings> parse_settings(std::string_view json) {
  try {
    const auto document = nlohmann::json::parse(json);
    serving_settings settings;
    const auto profile = kernels::profile_from_name(document.at("profile").get<std::string>());
    if (!profile) return error{errc::malformed, "the head's settings name an unknown numeric profile"};
    settings.profile = *profile;
    const auto dtype = [&](const char* field) { return static_cast<wire_dtype>(document.at(field).get<int>()); };
    settings.dispatch = dtype("dispatch");
    settings.combine = dtype("combine");
    document.at("model").get_to(settings.model);
    document.at("nodes").get_to(settings.nodes);
    document.at("nodes_max").get_to(settings.nodes_max);
    document.at("shards_per_node").get_to(settings.shards_per_node);
    document.at("threads_per_node").get_to(settings.threads_per_node);
    document.at("redundant_replicas").get_to(settings.redundant_replicas);
    document.at("placement").get_to(settings.placement);
    const auto selection = replica_selection_from_name(document.at("selection").get<std::string>());
    if (!selection) return error{errc::malformed, "the head's settings name an unknown replica selection"};
    settings.selection = *selection;
    auto rebalance = parse_rebalance_settings(document.at("rebalance").get<std::string>());
    if (!rebalance) return rebalance.failure();
    settings.rebalance = *std::move(rebalance);
    document.at("prefill_balancer").get_to(settings.prefill_balancer);
    document.at("decode_balancer").get_to(settings.decode_balancer);
    auto schedule = parse_schedule(document.at("schedule").get<std::string>());
    if (!schedule) return schedule.failure();
    settings.schedule = *std::move(schedule);
    document.at("rows_max").get_to(settings.rows_max);
    document.at("chunk").get_to(settings.chunk);
    document.at("kv_blocks").get_to(settings.kv_blocks);
    document.at("sequences_max").get_to(settings.sequences_max);
    document.at("dispatch_deadline_ms").get_to(settings.dispatch_deadline_ms);
    document.at("heartbeat_ms").get_to(settings.heartbeat_ms);
    document.at("verdict_ms").get_to(settings.verdict_ms);
    document.at("payload_checksum").get_to(settings.payload_checksum);
    document.at("fault_cut_ms").get_to(settings.fault_cut_ms);
    document.at("transports").get_to(settings.transports);
    settings.links = links_of(document.at("links"));
    if (auto valid = validate(settings); !valid) return valid.failure();
    return settings;
  } catch (const nlohmann::json::exception& failure) {
    return error{errc::malformed, std::string("the head's settings cannot be read (") + failure.what() +
                                      "); head and node run different versions"};
  }
}

result<void> validate(const serving_settings& settings) {
  struct bound {
    std::string_view field;
    uint64_t value, low, high;
  };
  const bound bounds[] = {
      {"nodes", settings.nodes, 1, 256},
      {"nodes_max", settings.nodes_max, 0, 256},
      {"shards_per_node", settings.shards_per_node, 1, 64},
      {"threads_per_node", settings.threads_per_node, 1, 256},
      {"redundant_replicas", settings.redundant_replicas, 0, 255},
      {"rows_max", settings.rows_max, 1, 16384},
      {"chunk", settings.chunk, 1, 16384},
      {"kv_blocks", settings.kv_blocks, 1, 1U << 24U},
      {"sequences_max", settings.sequences_max, 1, 65536},
      {"dispatch_deadline_ms", settings.dispatch_deadline_ms, 10, 600000},
      {"heartbeat_ms", settings.heartbeat_ms, 5, 60000},
      {"verdict_ms", settings.verdict_ms, 20, 600000},
  };
  for (const auto& b : bounds)
    if (b.value < b.low || b.value > b.high) return out_of_range(b.field, b.value, b.low, b.high);
  if (settings.verdict_ms < 3 * settings.heartbeat_ms)
    return error{errc::invalid_argument,
                 "verdict_ms must be at least three times heartbeat_ms, or a late heartbeat kills a healthy node"};
  if (settings.dispatch > wire_dtype::fp8) return error{errc::invalid_argument, "dispatch may be f32, bf16 or fp8"};
  if (settings.combine > wire_dtype::bf16)
    return error{errc::invalid_argument,
                 "combine may be f32 or bf16: expert outputs in fp8 would lose what the sum over experts needs"};
  if (auto valid = validate_transports(settings.transports); !valid) return valid;
  if (auto valid = validate(settings.rebalance); !valid) return valid;
  if (auto choice = make_prefill_choice(settings.prefill_balancer); !choice) return choice.failure();
  if (auto choice = make_decode_choice(settings.decode_balancer); !choice) return choice.failure();
  return validate(settings.links, settings.nodes_limit());
}

}  // namespace troupe
