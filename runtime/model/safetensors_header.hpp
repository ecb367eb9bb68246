// The header of one safetensors file, read and checked.
//
// Internal to runtime/model. Works on bytes in memory, so that tests can hand it anything. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/error.hpp"
#include "runtime/model/safetensors.hpp"

namespace troupe {

struct safetensors_entry {
  std::string name;
  tensor_dtype dtype = tensor_dtype::f32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes from the start of the file
  uint64_t end = 0;
};

inline constexpr uint64_t safetensors_header_bytes_max = 100'000'000;
inline constexpr size_t safetensors_rank_max = 16;

// The tensors of the file whose bytes are `file`, in the order of their data. Every range lies in
// `file` and has the size that dtype and shape ask for; together they cover the data without holes or
// overlaps, and no name comes twice.
// Fails: malformed, unsupported (a sub-byte dtype). The sentence names the tensor but not the file.
result<std::vector<safetensors_entry>> parse_safetensors_header(std::span<const std::byte> file);

}  // namespace troupe
