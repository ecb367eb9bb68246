#include "runtime/placement/topology_file.hpp"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <optional>
#include <vector>

#include "runtime/nearest_name.hpp"

namespace troupe {

namespace {

constexpr uint32_t devices_max = 65'534;
constexpr uint32_t slots_max = 65'534;

// One map of the document. Every key is asked for once; what is left over is unknown.
class section {
 public:
  section(const YAML::Node& node, std::string source) : node_(node), source_(std::move(source)) {
    if (!node.IsMap()) refuse(node, "it must be a list of `key: value` lines");
  }

  void number(const char* key, uint32_t& target, uint32_t from, uint32_t to) {
    if (const auto value = find(key)) {
      const auto read = as<int64_t>(value, key, "a whole number");
      if (read < from || read > to)
        refuse(value, std::string("`") + key + "` must be " + std::to_string(from) + " to " + std::to_string(to));
      else
        target = static_cast<uint32_t>(read);
    }
  }
  void gbytes(const char* key, uint64_t& target) {
    double amount = static_cast<double>(target) / 1e9;
    real(key, amount, 1e9);
    target = static_cast<uint64_t>(std::llround(amount * 1e9));
  }
  void real(const char* key, double& target, double to) {
    if (const auto value = find(key)) {
      const auto read = as<double>(value, key, "a number");
      const bool sensible = read >= 0 && read <= to;  // false for what is no number
      if (!sensible)
        refuse(value, std::string("`") + key + "` must be 0 to " + std::to_string(static_cast<uint64_t>(to)));
      else
        target = read;
    }
  }
  void text(const char* key, std::string& target) {
    if (const auto value = find(key)) target = as<std::string>(value, key, "a text");
  }
  YAML::Node find(const char* key) {
    known_.emplace_back(key);
    return node_.IsMap() ? node_[key] : YAML::Node(YAML::NodeType::Undefined);
  }

  result<void> finish() {
    if (!failure_ && node_.IsMap())
      for (const auto& entry : node_) {
        const auto key = entry.first.IsScalar() ? entry.first.Scalar() : std::string("?");
        if (std::find(known_.begin(), known_.end(), key) == known_.end())
          refuse(entry.first, "there is no key `" + key + "`; did you mean `" + nearest_name(key, known_) + "`?");
      }
    if (failure_) return *failure_;
    return {};
  }

 private:
  template <class Value>
  Value as(const YAML::Node& value, const char* key, const char* wanted) {
    try {
      return value.as<Value>();
    } catch (const YAML::Exception&) {
      refuse(value, std::string("`") + key + "` must be " + wanted);
      return {};
    }
  }
  void refuse(const YAML::Node& at, const std::string& why) {
    if (!failure_)
      failure_ = error{errc::malformed, source_ + ", line " + std::to_string(at.Mark().line + 1) + ": " + why};
  }

  const YAML::Node node_;
  std::string source_;
  std::vector<std::string> known_;
  std::optional<error> failure_;
};

result<placement_topology> read_document(const YAML::Node& document, const std::string& source) {
  section top(document, source);
  placement_topology topology;
  topology.name = source;
  uint32_t nodes = 0;
  uint32_t devices_per_node = 0;
  placement_device device;
  placement_node node;
  top.text("name", topology.name);
  top.number("nodes", nodes, 1, devices_max);
  top.number("devices_per_node", devices_per_node, 1, devices_max);
  top.number("slots", device.slots, 1, slots_max);
  top.gbytes("memory_gb", device.memory_bytes);
  top.number("node_slots", node.slots, 0, slots_max);
  top.gbytes("node_memory_gb", node.memory_bytes);
  top.real("within_node_gbytes_s", topology.within_node_gbytes_s, 1e6);
  top.real("between_nodes_gbytes_s", topology.between_nodes_gbytes_s, 1e6);
  const auto listed = top.find("devices");
  if (auto finished = top.finish(); !finished) return finished.failure();
  if (nodes == 0) return error{errc::malformed, source + ": `nodes` is missing"};
  if ((devices_per_node == 0) == !listed.IsDefined())
    return error{errc::malformed, source + ": give either `devices_per_node` or a list of `devices`"};
  topology.nodes.assign(nodes, node);
  if (uint64_t{nodes} * devices_per_node > devices_max || (listed.IsDefined() && listed.size() > devices_max))
    return error{errc::malformed, source + ": there may be at most " + std::to_string(devices_max) + " devices"};
  for (uint32_t i = 0; i < nodes * devices_per_node; ++i) {
    device.node = static_cast<uint16_t>(i / devices_per_node);
    topology.devices.push_back(device);
  }
  if (listed.IsDefined() && (!listed.IsSequence() || listed.size() == 0))
    return error{errc::malformed, source + ": `devices` must be a list of devices"};
  for (const auto& entry : listed) {
    section each(entry, source);
    auto own = device;
    uint32_t number = 0;
    each.number("node", number, 0, nodes - 1);
    each.number("slots", own.slots, 0, slots_max);
    each.gbytes("memory_gb", own.memory_bytes);
    if (auto finished = each.finish(); !finished) return finished.failure();
    own.node = static_cast<uint16_t>(number);
    topology.devices.push_back(own);
  }
  return topology;
}

}  // namespace

result<placement_topology> parse_topology(const std::string& text, const std::string& source) {
  try {
    return read_document(YAML::Load(text), source);
  } catch (const YAML::Exception& failure) {
    return error{errc::malformed, source + ": this is no YAML: " + failure.what()};
  }
}

result<placement_topology> read_topology(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return error{errc::not_found, "there is no topology file '" + path + "'; see config/topologies"};
  return parse_topology({std::istreambuf_iterator<char>(in), {}}, path);
}

}  // namespace troupe
