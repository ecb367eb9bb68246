// Memory for packed weights and for a thread's scratch.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "kernels/check.hpp"
#include "kernels/compute.hpp"

namespace troupe::kernels {
namespace {

constexpr size_t huge_page = size_t{2} << 20;
constexpr size_t alignment = 64;

constexpr size_t round_up(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Zeroed memory whose start lies on a huge-page boundary. The kernel gives huge pages only to whole
// aligned 2 MiB ranges, so one range more is mapped and the ends are given back.
std::byte* map_huge(size_t bytes) {
  const size_t wanted = bytes + huge_page;
  void* mapped = mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(mapped != MAP_FAILED, "out of memory for a packed weight");
  auto* begin = static_cast<std::byte*>(mapped);
  const size_t head = round_up(reinterpret_cast<uintptr_t>(begin), huge_page) - reinterpret_cast<uintptr_t>(begin);
  if (head > 0) munmap(begin, head);
  if (huge_page > head) munmap(begin + head + bytes, huge_page - head);
  madvise(begin + head, bytes, MADV_HUGEPAGE);  // a wish; small pages give the same bits
  return begin + head;
}

}  // namespace

void packed_matrix::release::operator()(std::byte* memory) const {
  if (mapped > 0) {
    munmap(memory, mapped);
  } else {
    std::free(memory);
  }
}

packed_matrix make_packed(weight_format format, int n, int k, size_t bytes) {
  require(n > 0 && k > 0 && bytes > 0, "a packed weight has at least one row and one column");
  packed_matrix packed;
  packed.n_ = n;
  packed.k_ = k;
  packed.format_ = format;
  packed.bytes_ = bytes;
  if (bytes >= huge_page) {
    const size_t mapped = round_up(bytes, huge_page);
    packed.data_ = {map_huge(mapped), packed_matrix::release(mapped)};
  } else {
    const size_t size = round_up(bytes, alignment);
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(alignment, size));
    require(memory != nullptr, "out of memory for a packed weight");
    std::memset(memory, 0, size);
    packed.data_ = {memory, packed_matrix::release()};
  }
  return packed;
}

std::byte* scratch::take(size_t bytes) {
  if (memory_.size() < bytes + alignment) memory_.resize(bytes + alignment);
  const auto start = reinterpret_cast<uintptr_t>(memory_.data());
  return memory_.data() + (round_up(start, alignment) - start);
}

}  // namespace troupe::kernels
