#include "runtime/serving/load_collector.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

load_collector::load_collector(const std::vector<bool>& moe_layers, uint32_t experts, uint32_t sources,
                               bool co_activation)
    : experts_(experts), sources_(sources) {
  int32_t count = 0;
  for (const bool moe : moe_layers) moe_layer_.push_back(moe ? count++ : -1);
  entries_ = static_cast<size_t>(count) * experts;
  window_ = empty_window();
  if (co_activation) pairs_.emplace(moe_layers, experts);
}

load_window load_collector::empty_window() const {
  return {std::vector<uint64_t>(entries_), std::vector<uint64_t>(entries_ * sources_), {}};
}

bool load_collector::fits(const received_rows& told) const {
  const size_t columns = std::max(1U, sources_);
  if (told.rows.size() != told.experts.size() * columns) return false;
  const bool ascending = std::ranges::adjacent_find(told.experts, std::greater_equal<>()) == told.experts.end();
  return ascending && (told.experts.empty() || told.experts.back() < moe_layer_.size() * experts_);
}

bool load_collector::add(node_id node, incarnation_id incarnation, const received_rows& told) {
  if (!fits(told)) return false;
  auto& last = told_[node];
  if (last.incarnation != incarnation) last = {incarnation, {}};
  const size_t columns = std::max(1U, sources_);
  size_t known = 0;  // in what was told last, which is ascending too
  for (size_t i = 0; i < told.experts.size(); ++i) {
    const uint32_t expert = told.experts[i];
    const int32_t layer = moe_layer_[expert / experts_];
    if (layer < 0) continue;
    while (known < last.received.experts.size() && last.received.experts[known] < expert) ++known;
    const bool had = known < last.received.experts.size() && last.received.experts[known] == expert;
    const size_t entry = static_cast<size_t>(layer) * experts_ + expert % experts_;
    for (size_t source = 0; source < columns; ++source) {
      const uint64_t before = had ? last.received.rows[known * columns + source] : 0;
      const uint64_t now = told.rows[i * columns + source];
      if (now <= before) continue;
      window_.rows[entry] += now - before;
      if (sources_ > 0) window_.source_rows[source * entries_ + entry] += now - before;
    }
  }
  last.received = told;
  return true;
}

bool load_collector::add(const chosen_pairs& told) { return pairs_ && pairs_->add(told); }

load_window load_collector::take() {
  if (pairs_) window_.pairs = pairs_->take_pairs();
  return std::exchange(window_, empty_window());
}

size_t bytes_of(const load_window& window) {
  return (window.rows.size() + window.source_rows.size()) * sizeof(uint64_t) +
         window.pairs.size() * sizeof(expert_pair);
}

}  // namespace troupe
