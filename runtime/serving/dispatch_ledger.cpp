#include "runtime/serving/dispatch_ledger.hpp"

#include <algorithm>

#include "runtime/placement/random.hpp"

namespace troupe {

uint64_t row_key(request_id request, int32_t position, uint32_t layer, uint32_t expert) {
  seeded_random mixed(request.value);
  return mixed.next() ^ (uint64_t{static_cast<uint32_t>(position)} << 32U) ^ (uint64_t{layer} << 16U) ^ expert;
}

void replica_router::update(const placement_table& placement, std::span<const live_node> live, uint16_t own_node,
                            replica_selection selection) {
  selection_ = selection;
  own_node_ = own_node;
  experts_ = placement.experts;
  live_.assign(live.begin(), live.end());
  uint32_t nodes = uint32_t{own_node} + 1;
  for (const auto& one : live) nodes = std::max(nodes, uint32_t{one.node} + 1);
  topology_ = even_topology(nodes, 1, 1);
  std::vector<bool> is_live(nodes);
  for (const auto& one : live) is_live[one.node] = true;
  nodes_.clear();
  shares_.clear();
  offsets_.assign(1, 0);
  const bool has_shares = placement.shares.size() == placement.nodes.size();
  for (size_t entry = 0; entry + 1 < placement.offsets.size(); ++entry) {
    float sum = 0;
    for (uint32_t i = placement.offsets[entry]; i < placement.offsets[entry + 1]; ++i) {
      const uint16_t node = placement.nodes[i];
      if (node >= nodes || !is_live[node]) continue;
      nodes_.push_back(node);
      shares_.push_back(has_shares ? placement.shares[i] : 1.0F);
      sum += shares_.back();
    }
    for (size_t i = offsets_.back(); i < nodes_.size(); ++i)
      shares_[i] = sum > 0 ? shares_[i] / sum : 1.0F / static_cast<float>(nodes_.size() - offsets_.back());
    offsets_.push_back(static_cast<uint32_t>(nodes_.size()));
  }
}

std::span<const uint16_t> replica_router::candidates(uint32_t layer, uint32_t expert) const {
  const size_t entry = size_t{layer} * experts_ + expert;
  if (entry + 1 >= offsets_.size()) return {};
  return {nodes_.data() + offsets_[entry], offsets_[entry + 1] - offsets_[entry]};
}

std::optional<uint16_t> replica_router::serves(uint32_t layer, uint32_t expert, uint64_t key) const {
  const auto nodes = candidates(layer, expert);
  if (nodes.empty()) return std::nullopt;
  if (nodes.size() == 1) return nodes.front();
  const std::span<const float> shares(shares_.data() + (nodes.data() - nodes_.data()), nodes.size());
  return nodes[select_replica(selection_, nodes, shares, topology_, own_node_, key)];
}

std::optional<uint16_t> replica_router::alternative(uint32_t layer, uint32_t expert, uint16_t but) const {
  for (const uint16_t node : candidates(layer, expert))
    if (node != but) return node;
  return std::nullopt;
}

bool replica_router::holds(uint32_t layer, uint32_t expert, uint16_t node) const {
  const auto nodes = candidates(layer, expert);
  return std::find(nodes.begin(), nodes.end(), node) != nodes.end();
}

std::optional<uint32_t> replica_router::incarnation(uint16_t node) const {
  for (const auto& live : live_)
    if (live.node == node) return live.incarnation;
  return std::nullopt;
}

void dispatch_ledger::open(uint32_t step_index, uint64_t step_number, uint32_t layer, std::span<const owed_pair> pairs,
                           std::span<const uint64_t> keys, const replica_router& router, std::optional<uint16_t> avoid,
                           uint32_t attempt, steady_time now, std::vector<owed_pair>& stranded) {
  for (auto& list : by_node_) list.clear();
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto& pair = pairs[i];
    auto node = router.serves(layer, pair.expert, keys[i]);
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
    entry.epoch = 0;
    entry.sent = false;
    entry.repeated = false;
    entry.since = now;
    entry.pairs.assign(by_node_[node].begin(), by_node_[node].end());
  }
}

uint64_t dispatch_ledger::oldest_epoch(uint64_t current) const {
  for (const auto& entry : entries_)
    if (entry.id != 0 && entry.sent) current = std::min(current, entry.epoch);
  return current;
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
