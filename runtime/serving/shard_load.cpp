#include "runtime/serving/shard_load.hpp"

#include <tuple>

namespace troupe {

namespace {

template <class Key>
std::optional<size_t> least(std::span<const shard_load> loads, Key&& key) {
  std::optional<size_t> best;
  for (size_t i = 0; i < loads.size(); ++i)
    if (!best || key(loads[i]) < key(loads[*best])) best = i;
  return best;
}

}  // namespace

std::optional<size_t> choose_prefill_shard(std::span<const shard_load> loads, uint32_t prompt_tokens) {
  const uint64_t work = attention_work(prompt_tokens);
  return least(loads, [&](const shard_load& load) {
    return std::tuple(load.attention_work + work, load.tokens + prompt_tokens, load.requests);
  });
}

std::optional<size_t> choose_decode_shard(std::span<const shard_load> loads) {
  return least(loads, [](const shard_load& load) { return std::tuple(load.tokens, load.requests); });
}

size_t stay_with_holder(size_t holder, std::span<const shard_load>) { return holder; }

uint64_t attention_work(uint32_t prompt_tokens) { return uint64_t{prompt_tokens} * (prompt_tokens + 1) / 2; }

}  // namespace troupe
