#include "runtime/serving/pair_counts.hpp"

#include <algorithm>

namespace troupe {

pair_counts::pair_counts(const std::vector<bool>& moe_layers, uint32_t experts)
    : pairs_(experts * (experts - 1) / 2), tokens_(moe_layers.size()) {
  for (size_t layer = 0; layer < moe_layers.size(); ++layer)
    if (moe_layers[layer]) tokens_[layer].resize(pairs_);
}

void pair_counts::count(uint32_t layer, std::span<const kernels::routed_expert> routes, size_t top_k) {
  uint32_t* tokens = tokens_[layer].data();
  for (size_t token = 0; token < routes.size(); token += top_k)
    for (size_t i = 1; i < top_k; ++i)
      for (size_t j = 0; j < i; ++j) {
        const auto one = static_cast<uint32_t>(routes[token + i].expert);
        const auto other = static_cast<uint32_t>(routes[token + j].expert);
        ++tokens[pair_number(std::min(one, other), std::max(one, other))];
      }
}

bool pair_counts::add(const chosen_pairs& told) {
  if (told.layer >= tokens_.size() || tokens_[told.layer].empty() || told.pairs.size() != told.tokens.size())
    return false;
  for (size_t i = 0; i < told.pairs.size(); ++i)
    if (told.pairs[i] >= pairs_ || (i > 0 && told.pairs[i] <= told.pairs[i - 1])) return false;
  auto& tokens = tokens_[told.layer];
  for (size_t i = 0; i < told.pairs.size(); ++i) tokens[told.pairs[i]] += told.tokens[i];
  return true;
}

std::vector<chosen_pairs> pair_counts::take() {
  std::vector<chosen_pairs> taken;
  for (size_t layer = 0; layer < tokens_.size(); ++layer) {
    auto& tokens = tokens_[layer];
    const auto count = static_cast<size_t>(tokens.size()) - static_cast<size_t>(std::ranges::count(tokens, 0U));
    if (count == 0) continue;
    auto& of_layer = taken.emplace_back();
    of_layer.layer = static_cast<uint32_t>(layer);
    of_layer.pairs.reserve(count);
    of_layer.tokens.reserve(count);
    for (uint32_t pair = 0; pair < pairs_; ++pair) {
      if (tokens[pair] == 0) continue;
      of_layer.pairs.push_back(pair);
      of_layer.tokens.push_back(tokens[pair]);
    }
    std::ranges::fill(tokens, 0U);
  }
  return taken;
}

std::vector<expert_pair> pair_counts::take_pairs() {
  std::vector<expert_pair> taken;
  uint32_t moe_layer = 0;
  for (auto& tokens : tokens_) {
    if (tokens.empty()) continue;
    uint32_t a = 0;
    uint32_t b = 1;
    for (const uint32_t count : tokens) {
      if (count > 0) taken.push_back({moe_layer, a, b, count});
      if (++a == b) {
        a = 0;
        ++b;
      }
    }
    std::ranges::fill(tokens, 0U);
    ++moe_layer;
  }
  return taken;
}

}  // namespace troupe
