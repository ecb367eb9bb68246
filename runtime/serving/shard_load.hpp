// What the balancers know of each shard, and how they choose. Pure decisions.
//
// Objectives as published for DeepSeek-V3/R1: the prefill balancer equalises core-attention work and
// input tokens over its shards; the decode balancer equalises KV use, then the number of requests. Others may
// be named in their place, for comparison.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "runtime/error.hpp"
#include "runtime/ids.hpp"

namespace troupe {

struct shard_load {
  uint64_t requests = 0;
  uint64_t tokens = 0;          // input tokens (prefill) or KV positions (decode)
  uint64_t attention_work = 0;  // sum of n * (n + 1) / 2 over prompts of n tokens
};

// Index of the shard for a prompt: least attention work after adding it, then fewest tokens, then
// fewest requests, then lowest index. Nothing when `loads` is empty.
std::optional<size_t> choose_prefill_shard(std::span<const shard_load> loads, uint32_t prompt_tokens);

// Index of the shard to decode on: least KV use, then fewest requests, then lowest index; `holder`, where the KV
// is, goes before others that are alike. Nothing when `loads` is empty.
std::optional<size_t> choose_decode_shard(std::span<const shard_load> loads, size_t holder);

// The `turn`-th choice of a balancer. Requires: `loads` is not empty, and `holder` one of them.
using prefill_choice = std::function<size_t(std::span<const shard_load> loads, uint32_t prompt_tokens, uint64_t turn)>;
using decode_choice = std::function<size_t(size_t holder, std::span<const shard_load> loads, uint64_t turn)>;

// `published` (as above), `round_robin` or `random:seed=1`; the decode balancer also `stay`: where the KV is.
// Fails: not_found with the nearest name, invalid_argument.
result<prefill_choice> make_prefill_choice(const std::string& text);
result<decode_choice> make_decode_choice(const std::string& text);

uint64_t attention_work(uint32_t prompt_tokens);

// How far from level the shards are: the most loaded over the mean, 1 at best, also when nothing is loaded.
struct shard_imbalance {
  double requests = 1;
  double tokens = 1;
  double attention_work = 1;
};
shard_imbalance imbalance_of(std::span<const shard_load> loads);

}  // namespace troupe
