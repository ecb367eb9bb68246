// A checkpoint on disk: one safetensors file or several with an index, mapped into memory.
//
// File layout (MODEL.md 3.1): u64 little-endian N; N bytes of JSON; tensor bytes to the end. Nothing
// is copied: a `tensor_view` points into the mapping, which lives as long as the checkpoint or any
// copy of `keep_alive()`. Reading is safe from any thread. The files must not shrink while mapped
// (the system would raise SIGBUS); this is the usual contract of mapped files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/error.hpp"

namespace troupe {

enum class tensor_dtype : uint8_t {
  boolean,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  i64,
  u64,
  f64,
  c64,
};

// As in the file: "BF16".
std::string_view name(tensor_dtype dtype);
// Bytes of one element.
int64_t size_of(tensor_dtype dtype);

struct tensor_view {
  tensor_dtype dtype = tensor_dtype::f32;
  std::vector<int64_t> shape;       // row-major; empty for a scalar
  std::span<const std::byte> data;  // size_of(dtype) * product(shape) bytes, little-endian, perhaps unaligned

  int64_t elements() const;
};

// Maps all pages of a tensor at once, and reads from disk what is not in memory: cheaper than a fault for each few
// pages while it is read. Any thread. A wish: reading works without.
void populate(const tensor_view& tensor);

class checkpoint {
 public:
  // Opens model.safetensors.index.json and its shards or, without an index, model.safetensors.
  // Fails: not_found (neither is there, or a shard is missing), malformed (a header or the index
  // breaks the format; the sentence names the file and the tensor), unsupported (a sub-byte dtype),
  // internal (the system refuses to map a file).
  static result<checkpoint> open(const std::filesystem::path& directory);
  // Opens one safetensors file. Fails: as `open`.
  static result<checkpoint> open_file(const std::filesystem::path& file);

  checkpoint(checkpoint&&) noexcept;
  checkpoint& operator=(checkpoint&&) noexcept;
  checkpoint(const checkpoint&) = delete;
  checkpoint& operator=(const checkpoint&) = delete;
  ~checkpoint();

  // The tensor, or null. The pointer is valid as long as the mapping.
  const tensor_view* find(std::string_view name) const;
  // Every name, ascending.
  std::vector<std::string_view> names() const;
  size_t size() const;         // tensors
  int64_t data_bytes() const;  // of all tensors
  // Holds the mappings; copies of it keep every view valid after the checkpoint is gone.
  std::shared_ptr<const void> keep_alive() const;

 private:
  struct contents;
  explicit checkpoint(std::shared_ptr<const contents> held);
  std::shared_ptr<const contents> held_;
};

}  // namespace troupe
