#include "runtime/memory/block_allocator.hpp"

#include <bit>
#include <cstdint>
#include <cstdlib>

#include "runtime/memory/huge_pages.hpp"

namespace troupe {

namespace {

#ifdef __SANITIZE_ADDRESS__
constexpr bool blocks_apart = true;  // so that the sanitizer knows where each ends
#else
constexpr bool blocks_apart = false;
#endif

}  // namespace

block_allocator& block_allocator::instance() {
  static auto* const one = new block_allocator;  // lives on: static objects may still give blocks back
  return *one;
}

bool block_allocator::is_cut(size_t size) { return size >= least && size < huge_page && !blocks_apart; }

std::byte* block_allocator::take(size_t size) {
  if (!is_cut(size)) return static_cast<std::byte*>(allocate_on_huge_pages(size));
  const std::lock_guard lock(mutex_);
  auto& free = free_[static_cast<size_t>(std::countr_zero(size) - std::countr_zero(least))];
  if (free.empty()) {
    free.reserve(huge_page / size);
    auto* const page = static_cast<std::byte*>(allocate_on_huge_pages(huge_page));
    used_.emplace(page, 0);
    for (size_t at = huge_page; at > 0; at -= size) free.push_back(page + at - size);
  }
  std::byte* const block = free.back();
  free.pop_back();
  ++used_.at(block - reinterpret_cast<uintptr_t>(block) % huge_page);
  return block;
}

void block_allocator::give_back(std::byte* block, size_t size) {
  if (!is_cut(size)) return std::free(block);
  const std::lock_guard lock(mutex_);
  auto& free = free_[static_cast<size_t>(std::countr_zero(size) - std::countr_zero(least))];
  std::byte* const page = block - reinterpret_cast<uintptr_t>(block) % huge_page;
  free.push_back(block);
  if (--used_.at(page) > 0) return;
  std::erase_if(free, [&](const std::byte* one) { return one >= page && one < page + huge_page; });
  used_.erase(page);
  std::free(page);
}

size_t block_allocator::bytes_held() const {
  const std::lock_guard lock(mutex_);
  return used_.size() * huge_page;
}

}  // namespace troupe
