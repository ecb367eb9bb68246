// "bench-1b": a random-weight model of 1,277 M parameters (256 M active a token), BF16, for benchmarks.
#pragma once

#include <filesystem>

#include "runtime/error.hpp"

namespace troupe {

// Writes config.json, model.safetensors (2.6 GB) and a byte-level tokenizer. Deterministic.
// Fails: internal (the disk is full or the directory cannot be written).
result<void> write_bench_1b(const std::filesystem::path& directory);

}  // namespace troupe
