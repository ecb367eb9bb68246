// Memory for payloads: blocks whose size is a power of two.
//
// Those from 4 KiB to 1 MiB are cut from huge pages. The system copies a payload between processes page by page, and
// does that faster on huge ones: 64 KiB took 3.9 us before and 3.3 so, 1 MiB 87 and 60 (docs/performance.md).
#pragma once

#include <array>
#include <cstddef>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace troupe {

// Thread: any.
class block_allocator {
 public:
  // The process's own.
  static block_allocator& instance();

  // `size` bytes at a multiple of 64, from 4 KiB on of 4 KiB; contents undefined. Throws std::bad_alloc. Requires: a
  // power of two.
  std::byte* take(size_t size);
  // Requires: `block` came from `take(size)`.
  void give_back(std::byte* block, size_t size);

  // Of huge pages that blocks are cut from.
  size_t bytes_held() const;

 private:
  static constexpr size_t huge_page = size_t{2} << 20;
  static constexpr size_t least = size_t{4} << 10;
  static constexpr size_t class_count = 9;  // 4 KiB, 8 KiB, ... 1 MiB

  static bool is_cut(size_t size);

  mutable std::mutex mutex_;
  std::array<std::vector<std::byte*>, class_count> free_;
  std::unordered_map<std::byte*, size_t> used_;  // blocks in use of each huge page
};

}  // namespace troupe
