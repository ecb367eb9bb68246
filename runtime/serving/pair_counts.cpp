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

chosen_pairs pair_counts::take(uint32_t layer) {
  auto& tokens = tokens_[layer];
  const size_t count = tokens.size() - static_cast<size_t>(std::ranges::count(tokens, 0U));
  chosen_pairs taken{layer, {}, {}};
  if (count == 0) return taken;
  // Every pair is written, and the next one over it unless it was chosen: a branch would be mispredicted often.
  taken.pairs.resize(count + 1);
  taken.tokens.resize(count + 1);
  size_t next = 0;
  for (uint32_t pair = 0; pair < pairs_; ++pair) {
    taken.pairs[next] = pair;
    taken.tokens[next] = tokens[pair];
    next += tokens[pair] > 0 ? 1 : 0;
  }
  taken.pairs.resize(count);
  taken.tokens.resize(count);
  std::ranges::fill(tokens, 0U);
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
