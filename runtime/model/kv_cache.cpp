#include "runtime/model/kv_cache.hpp"

#include "runtime/error.hpp"

namespace troupe {

kv_cache::kv_cache(const kernels::kv_layout& layout, int layers, int blocks)
    : layout_(layout),
      layers_(layers),
      memory_(layout.block_bytes * static_cast<size_t>(layers) * static_cast<size_t>(blocks)),
      in_use_(static_cast<size_t>(blocks), false) {
  free_.reserve(static_cast<size_t>(blocks));
  for (int32_t block = blocks - 1; block >= 0; --block) free_.push_back(block);
}

bool kv_cache::allocate(int count, std::vector<int32_t>& blocks) {
  if (count > free_count()) return false;
  for (int i = 0; i < count; ++i) {
    const int32_t block = free_.back();
    free_.pop_back();
    in_use_[static_cast<size_t>(block)] = true;
    blocks.push_back(block);
  }
  return true;
}

void kv_cache::release(std::vector<int32_t>& blocks) {
  for (const int32_t block : blocks) {
    TROUPE_CHECK(in_use_[static_cast<size_t>(block)], "a KV block was freed twice");
    in_use_[static_cast<size_t>(block)] = false;
    free_.push_back(block);
  }
  blocks.clear();
}

}  // namespace troupe
