#include "runtime/memory/huge_pages.hpp"

#include <fstream>
#include <string>

namespace troupe {

uint64_t bytes_on_huge_pages() {
  std::ifstream lines("/proc/self/smaps_rollup");
  std::string field;
  uint64_t kilobytes = 0;
  while (lines >> field)
    if (field == "AnonHugePages:") return lines >> kilobytes ? kilobytes * 1024 : 0;
  return 0;
}

}  // namespace troupe
