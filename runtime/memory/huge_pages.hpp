// What became of the wish for huge pages.
#pragma once

#include <cstdint>

namespace troupe {

// Bytes of this process's anonymous memory that lie on huge pages; 0 where the system does not tell. Walks all
// page tables: milliseconds for each GB. Any thread.
uint64_t bytes_on_huge_pages();

}  // namespace troupe
