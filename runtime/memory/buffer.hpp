// Reference-counted memory for micro-batches.
//
// A `buffer` is {bytes, capacity, size, count}; a `buffer_ref` is one reference to it. The wire holds
// a reference until the transport has completed, whatever dies meanwhile. Buffers come from a
// `buffer_pool` with a byte budget: it keeps what is given back in power-of-two size classes, so that
// a steady state allocates nothing, and `acquire` returns an empty reference when the budget is
// spent; the caller then waits for a release. Any thread may acquire, copy and drop references; the
// bytes themselves belong to one writer at a time.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "runtime/memory/short_lock.hpp"

namespace troupe {

class buffer_pool;

struct buffer {
  std::byte* data = nullptr;  // 64-byte aligned, `capacity` bytes
  uint64_t capacity = 0;      // bytes
  uint64_t size = 0;          // bytes in use, at most `capacity`
  std::atomic<uint32_t> references{0};
  buffer_pool* pool = nullptr;  // where it returns to; the pool outlives every reference
};

class buffer_ref {
 public:
  buffer_ref() = default;
  explicit buffer_ref(buffer* target) : target_(target) { retain(); }
  buffer_ref(const buffer_ref& other) : target_(other.target_) { retain(); }
  buffer_ref(buffer_ref&& other) noexcept : target_(other.target_) { other.target_ = nullptr; }
  buffer_ref& operator=(buffer_ref other) noexcept {
    std::swap(target_, other.target_);
    return *this;
  }
  ~buffer_ref() { release(); }

  explicit operator bool() const { return target_ != nullptr; }
  buffer* operator->() const { return target_; }
  buffer& operator*() const { return *target_; }
  std::span<std::byte> bytes() const { return {target_->data, target_->size}; }

 private:
  friend class buffer_pool;
  // Takes over the one reference that `target` has been given.
  static buffer_ref adopt(buffer* target) {
    buffer_ref out;
    out.target_ = target;
    return out;
  }
  void retain() const {
    if (target_ != nullptr) target_->references.fetch_add(1, std::memory_order_relaxed);
  }
  void release();

  buffer* target_ = nullptr;
};

class buffer_pool {
 public:
  explicit buffer_pool(uint64_t bytes_max);
  ~buffer_pool();  // Requires: every reference has been dropped.
  buffer_pool(const buffer_pool&) = delete;
  buffer_pool& operator=(const buffer_pool&) = delete;

  // A buffer with `size` bytes in use (contents undefined), or an empty reference when the budget
  // does not allow one now.
  buffer_ref acquire(uint64_t size);

  uint64_t bytes_max() const { return bytes_max_; }
  uint64_t bytes_in_use() const;  // capacity of the buffers that are referenced now

 private:
  friend class buffer_ref;
  void give_back(buffer* returned);
  buffer* take_cached(int size_class);
  bool reserve(uint64_t capacity);
  void trim(uint64_t bytes_wanted);

  static constexpr int class_count = 26;  // 256 bytes .. 8 GiB

  const uint64_t bytes_max_;
  mutable short_lock lock_;
  uint64_t bytes_held_ = 0;  // in use and cached
  uint64_t bytes_cached_ = 0;
  std::array<std::vector<buffer*>, class_count> cached_;
};

}  // namespace troupe
