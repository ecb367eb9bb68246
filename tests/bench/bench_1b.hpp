// "bench-1b": a random-weight model of 1,277 M parameters (256 M active a token), BF16 or FP8, for benchmarks.
#pragma once

#include <cstdint>
#include <filesystem>

#include "runtime/error.hpp"

namespace troupe {

// FP8 as DeepSeek-V3's checkpoints: each weight of a layer is F8_E4M3 [n, k] with F32 `weight_scale_inv`
// [ceil(n/128), ceil(k/128)] beside it; the router, norms, embeddings and head stay BF16. The same weights, rounded.
enum class bench_weights : uint8_t { bf16, fp8 };

struct bench_model {
  bench_weights weights = bench_weights::bf16;
  // A token takes `top_k` of 8 `top_k` experts, whose width is such that it costs the same for any `top_k` (8 is
  // bench-1b; the shared expert has their width). 1, 2, 4 or 8.
  int top_k = 8;
  // Every eight experts have the same routers, so that each token takes one of each eight: on up to `top_k` nodes
  // that hold as many experts each, in order, all get as many rows of every micro-batch.
  bool balanced = false;
};

// Writes config.json, model.safetensors (2.6 GB; 1.3 GB in FP8) and a byte-level tokenizer. Deterministic.
// Fails: internal (the disk is full or the directory cannot be written).
result<void> write_bench_1b(const std::filesystem::path& directory, const bench_model& model);

}  // namespace troupe
