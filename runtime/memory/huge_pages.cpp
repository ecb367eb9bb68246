#include "runtime/memory/huge_pages.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <fstream>
#include <new>
#include <string>

namespace troupe {

void* allocate_on_huge_pages(size_t bytes) {
  constexpr size_t line = 64, page = size_t{4} << 10, huge_page = size_t{2} << 20;
  const size_t alignment = bytes < page ? line : bytes < huge_page ? page : huge_page;
  if (bytes > PTRDIFF_MAX - alignment) throw std::bad_alloc();
  const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  if (alignment == huge_page) madvise(memory, rounded, MADV_HUGEPAGE);  // a wish
  return memory;
}

uint64_t bytes_on_huge_pages() {
  std::ifstream lines("/proc/self/smaps_rollup");
  uint64_t total = 0;
  for (std::string field; lines >> field;)
    if (uint64_t kilobytes = 0; (field == "AnonHugePages:" || field == "ShmemPmdMapped:") && lines >> kilobytes)
      total += kilobytes * 1024;
  return total;
}

}  // namespace troupe
