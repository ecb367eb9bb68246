// Memory for packed weights and for a thread's scratch.
//
// Weights are streamed, and a stream over small pages is slower by a third, so packed weights lie on huge pages:
// large ones in mappings of their own, the others cut one after the other from slabs, since an expert's matrix is
// often smaller than a huge page.
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "kernels/check.hpp"
#include "kernels/compute.hpp"

namespace troupe::kernels {
namespace {

constexpr size_t huge_page = size_t{2} << 20;
constexpr size_t alignment = 64;
constexpr size_t slab_bytes = size_t{16} << 20;
constexpr size_t own_mapping_min = size_t{8} << 20;  // what rounding such a weight up wastes is a small part of it
constexpr size_t slab_block_min = size_t{64} << 10;  // less than that comes from the heap

constexpr size_t round_up(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Zeroed memory that starts at a multiple of `boundary`, itself a multiple of a huge page: the kernel gives huge pages
// only to whole aligned 2 MiB ranges. More is mapped than asked for and the ends are given back.
std::byte* map_huge(size_t bytes, size_t boundary) {
  void* mapped = mmap(nullptr, bytes + boundary, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(mapped != MAP_FAILED, "out of memory for a packed weight");
  auto* begin = static_cast<std::byte*>(mapped);
  const size_t head = round_up(reinterpret_cast<uintptr_t>(begin), boundary) - reinterpret_cast<uintptr_t>(begin);
  if (head > 0) munmap(begin, head);
  if (boundary > head) munmap(begin + head + bytes, boundary - head);
  madvise(begin + head, bytes, MADV_HUGEPAGE);  // a wish; small pages give the same bits
  return begin + head;
}

// The first bytes of a slab, which starts at a multiple of its size. The slab goes when nobody holds it any more:
// neither a weight that was cut from it nor the thread that cuts.
struct alignas(alignment) slab {
  std::atomic<uint32_t> holders{1};

  static slab& of(std::byte* block) {
    return *reinterpret_cast<slab*>(reinterpret_cast<uintptr_t>(block) / slab_bytes * slab_bytes);
  }
  void drop() {
    if (holders.fetch_sub(1, std::memory_order_acq_rel) == 1) munmap(this, slab_bytes);
  }
};

// Cuts blocks off a slab. Each thread has its own: two that touched one huge page at once would both clear it.
class slab_cutter {
 public:
  slab_cutter() = default;
  slab_cutter(const slab_cutter&) = delete;
  slab_cutter& operator=(const slab_cutter&) = delete;
  ~slab_cutter() {
    if (slab_ != nullptr) slab_->drop();
  }

  // Zeroed. Requires: bytes is a multiple of `alignment` and less than half a slab.
  std::byte* cut(size_t bytes) {
    if (slab_ == nullptr || used_ + bytes > slab_bytes) {
      if (slab_ != nullptr) slab_->drop();
      slab_ = new (map_huge(slab_bytes, slab_bytes)) slab;
      used_ = sizeof(slab);
    }
    slab_->holders.fetch_add(1, std::memory_order_relaxed);
    std::byte* block = reinterpret_cast<std::byte*>(slab_) + used_;
    used_ += bytes;
    return block;
  }

 private:
  slab* slab_ = nullptr;
  size_t used_ = 0;
};

}  // namespace

void packed_matrix::release::operator()(std::byte* memory) const {
  if (mapped == borrowed) return;
  if (mapped >= own_mapping_min) {
    munmap(memory, mapped);
  } else if (mapped > 0) {
    slab::of(memory).drop();
  } else {
    std::free(memory);
  }
}

packed_matrix make_packed(weight_format format, int n, int k, size_t bytes, const packed_parts& parts) {
  require(n > 0 && k > 0 && bytes > 0, "a packed weight has at least one row and one column");
  packed_matrix packed;
  packed.n_ = n;
  packed.k_ = k;
  packed.format_ = format;
  packed.bytes_ = bytes;
  packed.parts_ = parts;
  if (bytes >= own_mapping_min) {
    const size_t mapped = round_up(bytes, huge_page);
    packed.data_ = {map_huge(mapped, huge_page), packed_matrix::release(mapped)};
  } else if (bytes >= slab_block_min) {
    thread_local slab_cutter cutter;
    const size_t size = round_up(bytes, alignment);
    packed.data_ = {cutter.cut(size), packed_matrix::release(size)};
  } else {
    const size_t size = round_up(bytes, alignment);
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(alignment, size));
    require(memory != nullptr, "out of memory for a packed weight");
    std::memset(memory, 0, size);
    packed.data_ = {memory, packed_matrix::release()};
  }
  return packed;
}

packed_matrix borrow_packed(const packed_matrix& like, std::byte* memory) {
  packed_matrix packed;
  packed.n_ = like.n_;
  packed.k_ = like.k_;
  packed.format_ = like.format_;
  packed.bytes_ = like.bytes_;
  packed.parts_ = like.parts_;
  packed.data_ = {memory, packed_matrix::release(packed_matrix::release::borrowed)};
  return packed;
}

std::byte* scratch::take(size_t bytes) {
  if (memory_.size() < bytes + alignment) memory_.resize(bytes + alignment);
  const auto start = reinterpret_cast<uintptr_t>(memory_.data());
  return memory_.data() + (round_up(start, alignment) - start);
}

}  // namespace troupe::kernels
