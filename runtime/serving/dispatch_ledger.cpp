#include "runtime/serving/dispatch_ledger.hpp"

#include <algorithm>

namespace troupe {

void replica_router::update(const placement_table& placement, std::span<const live_node> live, uint16_t own_node) {
  placement_ = placement;
  live_.assign(live.begin(), live.end());
  serving_.assign(size_t{placement.layers} * placement.experts, none);
  for (uint32_t layer = 0; layer < placement.layers; ++layer)
    for (uint32_t expert = 0; expert < placement.experts; ++expert) {
      auto& serving = serving_[size_t{layer} * placement.experts + expert];
      for (const uint16_t node : placement.replicas(layer, expert)) {
        if (!incarnation(node)) continue;
        if (serving == none || node == own_node) serving = node;
      }
    }
}

std::optional<uint16_t> replica_router::serves(uint32_t layer, uint32_t expert) const {
  const size_t at = size_t{layer} * placement_.experts + expert;
  if (at >= serving_.size() || serving_[at] == none) return std::nullopt;
  return serving_[at];
}

std::optional<uint16_t> replica_router::alternative(uint32_t layer, uint32_t expert, uint16_t but) const {
  if (size_t{layer} * placement_.experts + expert >= serving_.size()) return std::nullopt;
  for (const uint16_t node : placement_.replicas(layer, expert))
    if (node != but && incarnation(node)) return node;
  return std::nullopt;
}

std::optional<uint32_t> replica_router::incarnation(uint16_t node) const {
  for (const auto& live : live_)
    if (live.node == node) return live.incarnation;
  return std::nullopt;
}

void dispatch_ledger::open(uint32_t step_index, uint64_t step_number, uint32_t layer, std::span<const owed_pair> pairs,
                           const replica_router& router, std::optional<uint16_t> avoid, uint32_t attempt,
                           steady_time now, std::vector<owed_pair>& stranded) {
  for (auto& list : by_node_) list.clear();
  for (const auto& pair : pairs) {
    auto node = router.serves(layer, pair.expert);
    if (node && avoid && *node == *avoid) node = router.alternative(layer, pair.expert, *avoid);
    if (!node) {
      stranded.push_back(pair);
      continue;
    }
    if (by_node_.size() <= *node) by_node_.resize(size_t{*node} + 1);
    by_node_[*node].push_back(pair);
  }
  for (size_t node = 0; node < by_node_.size(); ++node) {
    if (by_node_[node].empty()) continue;
    auto& entry = fresh();
    entry.step_index = step_index;
    entry.step_number = step_number;
    entry.layer = layer;
    entry.to = {static_cast<uint16_t>(node), *router.incarnation(static_cast<uint16_t>(node))};
    entry.attempt = attempt;
    entry.sent = false;
    entry.repeated = false;
    entry.since = now;
    entry.pairs.assign(by_node_[node].begin(), by_node_[node].end());
  }
}

outstanding_dispatch* dispatch_ledger::find(uint32_t id) {
  for (auto& entry : entries_)
    if (entry.id == id && id != 0) return &entry;
  return nullptr;
}

void dispatch_ledger::close(outstanding_dispatch& entry) {
  entry.id = 0;
  entry.pairs.clear();
}

void dispatch_ledger::close_step(uint32_t step_index) {
  for (auto& entry : entries_)
    if (entry.id != 0 && entry.step_index == step_index) close(entry);
}

outstanding_dispatch& dispatch_ledger::fresh() {
  const uint32_t id = next_id_++;
  if (next_id_ == 0) next_id_ = 1;
  for (auto& entry : entries_)
    if (entry.id == 0) {
      entry.id = id;
      return entry;
    }
  entries_.emplace_back().id = id;
  return entries_.back();
}

}  // namespace troupe
