// Counts what actors allocate: this test program replaces the global operator new.
//
// Sanitizers bring their own; with them nothing is counted.
#pragma once

#include <cstdint>

namespace troupe::testing {

bool can_count_allocations();
// Counting goes on between `true` and `false`.
void count_allocations(bool on);
uint64_t allocations_counted();

}  // namespace troupe::testing
