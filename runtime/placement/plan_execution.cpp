#include "runtime/placement/plan_execution.hpp"

#include <algorithm>
#include <numeric>
#include <set>

namespace troupe {

namespace {

std::vector<std::vector<uint16_t>> lists_of(const placement_table& table) {
  std::vector<std::vector<uint16_t>> lists(size_t{table.layers} * table.experts);
  for (size_t i = 0; i < lists.size(); ++i)
    lists[i].assign(table.nodes.begin() + table.offsets[i], table.nodes.begin() + table.offsets[i + 1]);
  return lists;
}

bool contains(const std::vector<uint16_t>& nodes, uint16_t node) {
  return std::find(nodes.begin(), nodes.end(), node) != nodes.end();
}

}  // namespace

const serving_node* plan_execution::find_live(uint16_t node) const {
  const auto found = std::find_if(live_.begin(), live_.end(), [&](const auto& one) { return one.node == node; });
  return found == live_.end() ? nullptr : &*found;
}

bool plan_execution::wanted(const replica_place& place) const {
  return !target_.empty() && contains(target_[at(place)], place.node);
}

bool plan_execution::loading(const replica_place& place) const {
  const auto found = held_.find(place);
  return found != held_.end() && found->second.what == state::loading;
}

uint32_t plan_execution::replicas_at(uint16_t node) const {
  uint32_t count = 0;
  for (const auto& nodes : published_) count += contains(nodes, node) ? 1 : 0;
  for (const auto& [place, held] : held_) count += place.node == node ? 1 : 0;
  return count;
}

void plan_execution::see(uint64_t epoch, const placement_table& published, std::span<const serving_node> live) {
  if (epoch <= epoch_) return;
  const bool first = epoch_ == 0;
  epoch_ = epoch;
  publishing_ = false;
  layers_ = published.layers;
  experts_ = published.experts;
  std::vector<serving_node> now(live.begin(), live.end());
  const auto stays = [&](uint16_t node) {
    const auto* before = find_live(node);
    return before != nullptr && std::any_of(now.begin(), now.end(), [&](const serving_node& one) {
             return one.node == node && one.incarnation == before->incarnation;
           });
  };
  std::erase_if(held_, [&](const auto& entry) { return !stays(entry.first.node); });
  lists listed = lists_of(published);
  for (uint32_t layer = 0; layer < layers_ && !first; ++layer)
    for (uint32_t expert = 0; expert < experts_; ++expert) {
      const size_t entry = size_t{layer} * experts_ + expert;
      for (const uint16_t node : published_[entry])
        if (!contains(listed[entry], node) && stays(node))
          held_[{layer, expert, node}] = {state::retiring, epoch, std::nullopt};
    }
  std::erase_if(held_, [&](const auto& entry) {
    return entry.second.what == state::named && contains(listed[at(entry.first)], entry.first.node);
  });
  for (auto& [place, held] : held_)
    if (held.what == state::named) held.what = state::ready;  // another table came first
  live_ = std::move(now);
  published_ = std::move(listed);
  if (target_.size() != published_.size()) target_.clear();
  compare();
}

uint32_t plan_execution::pursue(const placement_table& target, const execution_limits& limits,
                                const std::vector<uint32_t>& layers_first) {
  const uint32_t undone = moves_left();
  target_ = lists_of(target);
  limits_ = limits;
  order_ = layers_first;
  for (uint32_t layer = 0; layer < layers_; ++layer)
    if (std::find(layers_first.begin(), layers_first.end(), layer) == layers_first.end()) order_.push_back(layer);
  compare();
  return undone;
}

// What is left to do. Entries of nodes that are not live are nobody's business: whoever returns has loaded them.
void plan_execution::compare() {
  adds_.clear();
  drops_.clear();
  if (target_.empty()) return;
  for (const uint32_t layer : order_)
    for (uint32_t expert = 0; expert < experts_; ++expert) {
      const size_t entry = size_t{layer} * experts_ + expert;
      // An expert that was to go to a node that cannot take it stays where it is.
      const bool possible = std::all_of(target_[entry].begin(), target_[entry].end(), [&](uint16_t node) {
        const auto* live = find_live(node);
        return contains(published_[entry], node) || (live != nullptr && !live->draining);
      });
      if (!possible) target_[entry] = published_[entry];
      for (const uint16_t node : target_[entry])
        if (!contains(published_[entry], node)) adds_.push_back({layer, expert, node});
      for (const uint16_t node : published_[entry])
        if (find_live(node) != nullptr && !contains(target_[entry], node)) drops_.push_back({layer, expert, node});
    }
}

void plan_execution::loaded(const replica_place& place) {
  const auto found = held_.find(place);
  if (found != held_.end() && found->second.what == state::loading) found->second = {state::ready, 0, std::nullopt};
}

void plan_execution::failed(const replica_place& place) {
  const auto found = held_.find(place);
  if (found == held_.end() || found->second.what != state::loading) return;
  found->second = {state::failed, 0, std::nullopt};
  if (!target_.empty()) target_[at(place)] = published_[at(place)];
  compare();
}

void plan_execution::dropped(const replica_place& place) {
  const auto found = held_.find(place);
  if (found != held_.end() && found->second.what == state::dropping) held_.erase(found);
}

plan_execution::orders plan_execution::next(bool may_publish) {
  orders out;
  if (epoch_ == 0) return out;
  order_loads(out);
  order_drops(out);
  if (publishing_ || !may_publish) return out;
  out.publish = next_table(false);
  if (!out.publish && held_.empty() && !(adds_.empty() && drops_.empty())) {
    // Full nodes wait for each other: one replica too few for a moment is better than none of the moves.
    out.publish = next_table(true);
    if (!out.publish) {
      out.abandoned = moves_left();
      target_ = published_;
      compare();
    }
  }
  publishing_ = out.publish.has_value();
  for (auto& [place, held] : held_)
    if (publishing_ && held.what == state::ready && out.publish->holds(place.layer, place.expert, place.node))
      held.what = state::named;
  return out;
}

void plan_execution::order_loads(orders& out) {
  if (adds_.empty()) return;
  std::map<uint16_t, uint32_t> room;
  std::map<uint16_t, uint32_t> under_way;
  for (const auto& node : live_) {
    const uint32_t holds = replicas_at(node.node);
    room[node.node] = limits_.replicas_max > holds ? limits_.replicas_max - holds : 0;
  }
  for (const auto& [place, held] : held_) under_way[place.node] += held.what == state::loading ? 1 : 0;
  for (const auto& place : adds_) {
    if (const auto found = held_.find(place); found != held_.end()) {
      // It was to go and is still there: it comes back as it is.
      if (found->second.what == state::retiring) found->second = {state::ready, 0, std::nullopt};
      continue;
    }
    if (room[place.node] == 0 || under_way[place.node] >= limits_.loads_per_node) continue;
    --room[place.node];
    ++under_way[place.node];
    const auto from = source_of(place);
    held_[place] = {state::loading, 0, from};
    out.loads.push_back({place, from});
  }
}

// The node with a replica that sends fewest now.
std::optional<uint16_t> plan_execution::source_of(const replica_place& place) const {
  std::optional<uint16_t> best;
  size_t best_sends = 0;
  for (const uint16_t node : published_[at(place)]) {
    if (find_live(node) == nullptr) continue;
    const auto sends = static_cast<size_t>(
        std::count_if(held_.begin(), held_.end(), [&](const auto& entry) { return entry.second.from == node; }));
    if (best && sends >= best_sends) continue;
    best = node;
    best_sends = sends;
  }
  return best;
}

void plan_execution::order_drops(orders& out) {
  for (auto& [place, held] : held_) {
    const bool let_go = held.what == state::retiring && held.epoch <= acknowledged_;
    const bool never_named = held.what == state::ready && !wanted(place);
    if (!let_go && !never_named && held.what != state::failed) continue;
    held = {state::dropping, 0, std::nullopt};
    out.drops.push_back(place);
  }
}

std::optional<placement_table> plan_execution::next_table(bool pressed) const {
  std::set<size_t> touched;
  lists changed = published_;
  for (const auto& [place, held] : held_)
    if (held.what == state::ready && wanted(place)) {
      changed[at(place)].push_back(place.node);
      touched.insert(at(place));
    }
  std::set<size_t> incomplete;  // experts that still wait for a replica
  for (const auto& place : adds_)
    if (!contains(changed[at(place)], place.node)) incomplete.insert(at(place));
  for (const auto& place : drops_) {
    if (!pressed && incomplete.contains(at(place))) continue;
    auto& nodes = changed[at(place)];
    const auto live =
        std::count_if(nodes.begin(), nodes.end(), [&](uint16_t node) { return find_live(node) != nullptr; });
    if (live < 2) continue;
    std::erase(nodes, place.node);
    touched.insert(at(place));
  }
  if (touched.empty()) return std::nullopt;
  placement_table table;
  table.layers = layers_;
  table.experts = experts_;
  table.offsets.push_back(0);
  for (const auto& nodes : changed) {
    table.nodes.insert(table.nodes.end(), nodes.begin(), nodes.end());
    table.offsets.push_back(static_cast<uint32_t>(table.nodes.size()));
  }
  return table;
}

}  // namespace troupe
