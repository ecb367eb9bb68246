// Arrays on huge pages: rows of thousands of values that are read and written across, as products do, would otherwise
// wait for address translation.
#pragma once

#include <cstdlib>
#include <limits>
#include <new>

#include "runtime/memory/huge_pages.hpp"

namespace troupe {

// For std::vector; see `allocate_on_huge_pages`.
template <class T>
struct huge_allocator {
  using value_type = T;
  huge_allocator() = default;
  template <class U>
  huge_allocator(const huge_allocator<U>&) {}  // NOLINT: as allocators convert

  T* allocate(size_t count) {
    if (count > std::numeric_limits<size_t>::max() / sizeof(T)) throw std::bad_alloc();
    return static_cast<T*>(allocate_on_huge_pages(count * sizeof(T)));
  }
  void deallocate(T* memory, size_t) { std::free(memory); }
  friend bool operator==(const huge_allocator&, const huge_allocator&) { return true; }
};

}  // namespace troupe
