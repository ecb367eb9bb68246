// The paged latent KV cache of one shard.
//
// A block holds `kv_layout::tokens` positions of every layer; a sequence owns a list of blocks, one
// for each aligned run of positions. Blocks are counted: allocated = in use + free, and none is left
// when the shard is idle. The list of free blocks belongs to the shard's actor; block memory belongs
// to the device while a stage that names it runs.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/compute.hpp"
#include "runtime/memory/huge_allocator.hpp"

namespace troupe {

class kv_cache {
 public:
  // Takes all memory at construction: `blocks` x `layers` x layout.block_bytes.
  kv_cache(const kernels::kv_layout& layout, int layers, int blocks);

  const kernels::kv_layout& layout() const { return layout_; }
  int block_count() const { return static_cast<int>(in_use_.size()); }
  int free_count() const { return static_cast<int>(free_.size()); }
  int blocks_for(int64_t positions) const {
    return static_cast<int>((positions + kernels::kv_layout::tokens - 1) / kernels::kv_layout::tokens);
  }

  // Takes `count` blocks into `blocks` (appended), or none and returns false.
  bool allocate(int count, std::vector<int32_t>& blocks);
  // Gives blocks back and clears the list. Requires: each is in use.
  void release(std::vector<int32_t>& blocks);

  std::byte* address(int32_t block, int layer) {
    return memory_.data() + (static_cast<size_t>(block) * static_cast<size_t>(layers_) + static_cast<size_t>(layer)) *
                                layout_.block_bytes;
  }

 private:
  kernels::kv_layout layout_;
  int layers_;
  std::vector<std::byte, huge_allocator<std::byte>> memory_;
  std::vector<int32_t> free_;
  std::vector<bool> in_use_;
};

}  // namespace troupe
