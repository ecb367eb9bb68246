// Memory on huge pages, and what became of that wish.
#pragma once

#include <cstddef>
#include <cstdint>

namespace troupe {

// At least `bytes`, at a multiple of 64, from 4 KiB on of 4 KiB; from 2 MiB on huge pages where the system has them.
// Contents undefined; free with `std::free`. Throws std::bad_alloc. Any thread.
void* allocate_on_huge_pages(size_t bytes);

// Bytes of this process's memory, shared memory too, that lie on huge pages; 0 where the system does not tell. Walks
// all page tables: milliseconds for each GB. Any thread.
uint64_t bytes_on_huge_pages();

}  // namespace troupe
