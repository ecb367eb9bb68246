// "bench-1b": a random-weight model of 1,277 M parameters (256 M active a token), BF16 or FP8, for benchmarks.
#pragma once

#include <cstdint>
#include <filesystem>

#include "runtime/error.hpp"

namespace troupe {

// FP8 as DeepSeek-V3's checkpoints: each weight of a layer is F8_E4M3 [n, k] with F32 `weight_scale_inv`
// [ceil(n/128), ceil(k/128)] beside it; the router, norms, embeddings and head stay BF16. The same weights, rounded.
enum class bench_weights : uint8_t { bf16, fp8 };

// Writes config.json, model.safetensors (2.6 GB; 1.3 GB in FP8) and a byte-level tokenizer. Deterministic.
// A token takes `top_k` of 8 `top_k` experts, whose width is such that it costs the same for any `top_k` (8 is
// bench-1b; the shared expert has their width). Requires: top_k is 1, 2, 4 or 8. Fails: internal (the disk is full or
// the directory cannot be written).
result<void> write_bench_1b(const std::filesystem::path& directory, bench_weights weights, int top_k);

}  // namespace troupe
