#include "apps/cluster/load_meter.hpp"

#include <algorithm>
#include <cstdio>

namespace troupe {

load_meter::load_meter(std::string who, uint64_t bytes_total, clock::time_point begin)
    : who_(std::move(who)), total_(std::max<uint64_t>(bytes_total, 1)), begin_(begin), due_(begin + period) {}

std::optional<std::string> load_meter::add(uint64_t bytes, clock::time_point now) {
  const std::lock_guard lock(mutex_);
  done_ = std::min(done_ + bytes, total_);
  if (now < due_) return std::nullopt;
  due_ = now + period;
  const double done = static_cast<double>(done_) / 1e9;
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  char line[96];
  std::snprintf(line, sizeof line, ": %.0f %% of %.1f GB of weights loaded, %.1f GB/s",
                100.0 * static_cast<double>(done_) / static_cast<double>(total_), static_cast<double>(total_) / 1e9,
                done / seconds);
  return who_ + line;
}

}  // namespace troupe
