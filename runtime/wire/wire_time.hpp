// The time a live wire's own deadlines are measured in.
#pragma once

#include <chrono>
#include <cstdint>

namespace troupe {

inline uint64_t wire_time_ns() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

}  // namespace troupe
