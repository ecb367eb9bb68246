#include "runtime/placement/policy_json.hpp"

#include <nlohmann/json.hpp>

#include <fstream>
#include <iterator>

namespace troupe {

namespace {

using json = nlohmann::json;

error malformed(std::string why) { return {errc::malformed, std::move(why)}; }

json rows_to_json(const uint64_t* rows, uint32_t layers, uint32_t experts) {
  json all = json::array();
  for (uint32_t layer = 0; layer < layers; ++layer, rows += experts) all.push_back(std::vector(rows, rows + experts));
  return all;
}

json map_to_json(const expert_map& map) {
  json layers = json::array();
  for (uint32_t layer = 0; layer < map.layers; ++layer) {
    json experts = json::array();
    for (uint32_t expert = 0; expert < map.experts; ++expert) {
      const auto replicas = map.replicas(layer, expert);
      experts.push_back(std::vector(replicas.begin(), replicas.end()));
    }
    layers.push_back(std::move(experts));
  }
  return layers;
}

json window_to_json(const load_history& load, const load_window& window) {
  json made{{"rows", rows_to_json(window.rows.data(), load.layers, load.experts)}};
  const size_t entries = size_t{load.layers} * load.experts;
  if (!window.source_rows.empty()) {
    made["source_rows"] = json::array();
    for (uint32_t source = 0; source < load.sources; ++source)
      made["source_rows"].push_back(
          rows_to_json(window.source_rows.data() + source * entries, load.layers, load.experts));
  }
  if (!window.pairs.empty()) {
    made["pairs"] = json::array();
    for (const auto& pair : window.pairs) made["pairs"].push_back({pair.layer, pair.a, pair.b, pair.tokens});
  }
  return made;
}

// Parses without trusting depth: a document deeper than anything that is meant is refused.
result<json> parse(const std::string& text, const std::string& what) {
  constexpr int depth_max = 16;
  bool deep = false;
  const auto watch = [&](int depth, json::parse_event_t, json&) {
    deep = deep || depth > depth_max;
    return !deep;
  };
  try {
    auto document = json::parse(text, watch);
    if (deep) return malformed(what + " is nested too deeply");
    return document;
  } catch (const json::exception& failure) {
    if (deep) return malformed(what + " is nested too deeply");
    std::string why = failure.what();
    if (why.size() > 200) why = why.substr(0, 200) + "...";
    return malformed(what + " is not JSON: " + why);
  }
}

result<expert_map> map_from_json(const json& document, uint32_t layers, uint32_t experts, const std::string& what) {
  const auto found = document.find("map");
  if (found == document.end()) return malformed(what + " has no \"map\"");
  if (!found->is_array() || found->size() != layers)
    return malformed(what + ": \"map\" must be a list of " + std::to_string(layers) + " layers");
  expert_map map{layers, experts, {0}, {}};
  map.offsets.reserve(size_t{layers} * experts + 1);
  for (uint32_t layer = 0; layer < layers; ++layer) {
    const auto& row = (*found)[layer];
    const auto at = what + ": layer " + std::to_string(layer);
    if (!row.is_array() || row.size() != experts)
      return malformed(at + " must be a list of " + std::to_string(experts) + " experts" +
                       (row.is_array() ? ", and has " + std::to_string(row.size()) : std::string()));
    for (uint32_t expert = 0; expert < experts; ++expert) {
      const auto& replicas = row[expert];
      if (!replicas.is_array())
        return malformed(at + ", expert " + std::to_string(expert) + " must be a list of devices");
      for (const auto& device : replicas) {
        if (!device.is_number_integer() || device.get<int64_t>() < 0 || device.get<int64_t>() >= 0xffff)
          return malformed(at + ", expert " + std::to_string(expert) + " names '" + device.dump().substr(0, 40) +
                           "', which is no device");
        map.devices.push_back(device.get<uint16_t>());
      }
      map.offsets.push_back(static_cast<uint32_t>(map.devices.size()));
    }
  }
  return map;
}

}  // namespace

std::string to_json_line(const placement_input& input) {
  json devices = json::array();
  for (size_t i = 0; i < input.topology.devices.size(); ++i) {
    const auto& device = input.topology.devices[i];
    devices.push_back({{"node", device.node},
                       {"slots", device.slots},
                       {"memory_bytes", device.memory_bytes},
                       {"live", input.liveness(i)}});
  }
  json nodes = json::array();
  for (const auto& node : input.topology.nodes)
    nodes.push_back({{"slots", node.slots}, {"memory_bytes", node.memory_bytes}});
  json windows = json::array();
  for (const auto& window : input.load.windows) windows.push_back(window_to_json(input.load, window));
  const auto& limits = input.limits;
  const bool unlimited = limits.move_bytes_max == std::numeric_limits<uint64_t>::max();
  const json line{{"version", 1},
                  {"layers", input.load.layers},
                  {"experts", input.load.experts},
                  {"expert_groups", limits.expert_groups},
                  {"rows_per_token", limits.rows_per_token},
                  {"expert_bytes", limits.expert_bytes},
                  {"move_bytes_max", unlimited ? json() : json(limits.move_bytes_max)},
                  {"decay", limits.decay},
                  {"topology",
                   {{"name", input.topology.name},
                    {"nodes", std::move(nodes)},
                    {"devices", std::move(devices)},
                    {"within_node_gbytes_s", input.topology.within_node_gbytes_s},
                    {"between_nodes_gbytes_s", input.topology.between_nodes_gbytes_s}}},
                  {"windows", std::move(windows)},
                  {"current", input.current != nullptr ? map_to_json(*input.current) : json()}};
  return line.dump(-1, ' ', false, json::error_handler_t::replace);
}

result<placement_proposal> parse_answer(const std::string& line, uint32_t layers, uint32_t experts) {
  if (line.find_first_not_of(" \t\r") == std::string::npos) return malformed("the answer is empty");
  const auto document = parse(line, "the answer");
  if (!document) return document.failure();
  if (!document->is_object()) return malformed("the answer is not a JSON object");
  if (const auto said = document->find("error"); said != document->end())
    return error{errc::invalid_argument, "it says: " + (said->is_string() ? said->get<std::string>() : said->dump())};
  auto map = map_from_json(*document, layers, experts, "the answer");
  if (!map) return map.failure();
  std::string reason = "no reason given";
  if (const auto why = document->find("reason"); why != document->end()) {
    if (!why->is_string()) return malformed("the answer: \"reason\" must be a text");
    reason = why->get<std::string>().substr(0, 1000);
  }
  return placement_proposal{std::move(*map), std::move(reason)};
}

std::string to_json_line(const expert_map& map) {
  return json{{"layers", map.layers}, {"experts", map.experts}, {"map", map_to_json(map)}}.dump();
}

result<expert_map> read_map(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return error{errc::not_found, "there is no map file '" + path + "'"};
  const auto document = parse({std::istreambuf_iterator<char>(in), {}}, path);
  if (!document) return document.failure();
  uint32_t sizes[2] = {0, 0};
  const char* names[2] = {"layers", "experts"};
  for (int i = 0; i < 2; ++i) {
    const auto found = document->is_object() ? document->find(names[i]) : document->end();
    if (found == document->end() || !found->is_number_unsigned() || found->get<uint64_t>() == 0 ||
        found->get<uint64_t>() > 65'534)
      return malformed(path + ": \"" + names[i] + "\" must be a whole number from 1 to 65534");
    sizes[i] = found->get<uint32_t>();
  }
  return map_from_json(*document, sizes[0], sizes[1], path);
}

}  // namespace troupe
