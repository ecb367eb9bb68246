#include "runtime/wire/link_shape.hpp"

#include <cmath>
#include <set>
#include <string>

namespace troupe {

namespace {

constexpr double delay_us_max = 10e6;
constexpr double bandwidth_mb_s_min = 0.01;
constexpr double bandwidth_mb_s_max = 1e6;

uint64_t whole_ns(double us) { return static_cast<uint64_t>(std::llround(us * 1000)); }

// Written so that NaN is refused too.
bool within(double value, double low, double high) { return value >= low && value <= high; }

result<void> validate(const link_rule& rule, const std::string& which, uint32_t nodes) {
  const auto refuse = [&](const std::string& why) { return error{errc::invalid_argument, which + why}; };
  for (const auto& [field, node] : {std::pair("from", rule.from), std::pair("to", rule.to)})
    if (node != link_rule::any_node && (node < 0 || static_cast<uint32_t>(node) >= nodes))
      return refuse(std::string(field) + " is " + std::to_string(node) + "; it must be a node from 0 to " +
                    std::to_string(nodes - 1) + ", or -1 for any");
  if (rule.from != link_rule::any_node && rule.from == rule.to)
    return refuse("from and to are both " + std::to_string(rule.from) + "; a node has no link to itself");
  for (const auto& [field, value] :
       {std::pair("latency_us", rule.shape.latency_us), std::pair("jitter_us", rule.shape.jitter_us)})
    if (!within(value, 0, delay_us_max))
      return refuse(std::string(field) + " is " + std::to_string(value) + "; it must be between 0 and 10000000");
  const double bandwidth = rule.shape.bandwidth_mb_s;
  if (bandwidth != 0 && !within(bandwidth, bandwidth_mb_s_min, bandwidth_mb_s_max))
    return refuse("bandwidth_mb_s is " + std::to_string(bandwidth) +
                  "; it must be between 0.01 and 1000000, or 0 for unlimited");
  return {};
}

}  // namespace

uint64_t link_shape::latency_ns() const { return whole_ns(latency_us); }

uint64_t link_shape::jitter_ns() const { return whole_ns(jitter_us); }

uint64_t link_shape::occupied_ns(uint64_t bytes) const {
  if (bandwidth_mb_s == 0) return 0;
  return static_cast<uint64_t>(std::ceil(static_cast<double>(bytes) * 1000 / bandwidth_mb_s));
}

result<void> validate(std::span<const link_rule> rules, uint32_t nodes) {
  std::set<std::pair<int32_t, int32_t>> seen;
  for (size_t i = 0; i < rules.size(); ++i) {
    const std::string which = "links, entry " + std::to_string(i + 1) + ": ";
    if (auto valid = validate(rules[i], which, nodes); !valid) return valid;
    if (!seen.emplace(rules[i].from, rules[i].to).second)
      return error{errc::invalid_argument, which + "an earlier entry has the same from and to"};
  }
  return {};
}

link_table::link_table(link_shape otherwise, std::span<const link_rule> rules) : otherwise_(otherwise) {
  for (const auto& rule : rules) set(rule);
}

const link_shape& link_table::find(uint16_t from, uint16_t to) const {
  constexpr int32_t any = link_rule::any_node;
  const std::pair<int32_t, int32_t> keys[] = {{from, to}, {from, any}, {any, to}, {any, any}};
  for (const auto& key : keys)
    if (const auto at = shapes_.find(key); at != shapes_.end()) return at->second;
  return otherwise_;
}

}  // namespace troupe
