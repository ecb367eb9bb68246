#include "runtime/memory/buffer.hpp"

#include <bit>
#include <cstring>

#include "runtime/error.hpp"
#include "runtime/memory/block_allocator.hpp"

namespace troupe {

namespace {

constexpr uint64_t smallest_class = 256;

int class_of(uint64_t size) {
  const uint64_t rounded = std::bit_ceil(size < smallest_class ? smallest_class : size);
  return std::countr_zero(rounded) - std::countr_zero(smallest_class);
}

uint64_t capacity_of(int size_class) { return smallest_class << static_cast<unsigned>(size_class); }

}  // namespace

void buffer_ref::release() {
  if (target_ == nullptr) return;
  // The only reference there is cannot be copied meanwhile, so the locked instruction can be saved.
  if (target_->references.load(std::memory_order_acquire) == 1 ||
      target_->references.fetch_sub(1, std::memory_order_acq_rel) == 1)
    target_->pool->give_back(target_);
  target_ = nullptr;
}

buffer_pool::buffer_pool(uint64_t bytes_max) : bytes_max_(bytes_max) {
  // Returning a buffer must not allocate: room for what is normally in flight is taken here.
  for (auto& list : cached_) list.reserve(64);
}

buffer_pool::~buffer_pool() {
  const std::lock_guard lock(lock_);
  TROUPE_CHECK(bytes_held_ == bytes_cached_, "a buffer pool was destroyed while its buffers were in use");
  trim(bytes_held_);
}

buffer_ref buffer_pool::acquire(uint64_t size) {
  if (size > bytes_max_) return {};
  const int size_class = class_of(size);
  if (size_class >= class_count) return {};
  buffer* taken = take_cached(size_class);
  if (taken == nullptr) {
    const uint64_t capacity = capacity_of(size_class);
    if (!reserve(capacity)) return {};
    // Outside the lock: taking memory from the system and touching it takes long.
    taken = new buffer;
    taken->data = block_allocator::instance().take(capacity);
    std::memset(taken->data, 0, capacity);  // pre-faulted: the step loop takes no page faults
    taken->capacity = capacity;
    taken->pool = this;
  }
  taken->size = size;
  taken->references.store(1, std::memory_order_relaxed);
  return buffer_ref::adopt(taken);
}

buffer* buffer_pool::take_cached(int size_class) {
  const std::lock_guard lock(lock_);
  auto& list = cached_[static_cast<size_t>(size_class)];
  if (list.empty()) return nullptr;
  buffer* const taken = list.back();
  list.pop_back();
  bytes_cached_ -= taken->capacity;
  return taken;
}

// Counts `capacity` bytes as held, freeing cached ones of other sizes for them. False when the budget is
// spent.
bool buffer_pool::reserve(uint64_t capacity) {
  const std::lock_guard lock(lock_);
  if (bytes_held_ + capacity > bytes_max_) trim(bytes_held_ + capacity - bytes_max_);
  if (bytes_held_ + capacity > bytes_max_) return false;
  bytes_held_ += capacity;
  return true;
}

void buffer_pool::give_back(buffer* returned) {
  const std::lock_guard lock(lock_);
  bytes_cached_ += returned->capacity;
  cached_[static_cast<size_t>(class_of(returned->capacity))].push_back(returned);
}

uint64_t buffer_pool::bytes_in_use() const {
  const std::lock_guard lock(lock_);
  return bytes_held_ - bytes_cached_;
}

// Frees cached buffers, largest first, until `bytes_wanted` are free or none is left.
// Requires: the lock is held.
void buffer_pool::trim(uint64_t bytes_wanted) {
  uint64_t freed = 0;
  for (int c = class_count - 1; c >= 0 && freed < bytes_wanted; --c) {
    auto& list = cached_[static_cast<size_t>(c)];
    while (!list.empty() && freed < bytes_wanted) {
      buffer* victim = list.back();
      list.pop_back();
      freed += victim->capacity;
      bytes_cached_ -= victim->capacity;
      bytes_held_ -= victim->capacity;
      block_allocator::instance().give_back(victim->data, victim->capacity);
      delete victim;
    }
  }
}

}  // namespace troupe
