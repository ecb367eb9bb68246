// What the balancers know of each shard, and how they choose. Pure decisions.
//
// Objectives as published for DeepSeek-V3/R1: the prefill balancer equalises core-attention work and
// input tokens over its shards; the decode balancer equalises KV use, then the number of requests.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

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

// Index of the shard to decode on: least KV use, then fewest requests, then lowest index.
std::optional<size_t> choose_decode_shard(std::span<const shard_load> loads);

// Index of the shard to decode on when every shard prefills and decodes: where the KV is.
size_t stay_with_holder(size_t holder, std::span<const shard_load> loads);

using prefill_choice = std::optional<size_t> (*)(std::span<const shard_load> loads, uint32_t prompt_tokens);
using decode_choice = size_t (*)(size_t holder, std::span<const shard_load> loads);

uint64_t attention_work(uint32_t prompt_tokens);

}  // namespace troupe
