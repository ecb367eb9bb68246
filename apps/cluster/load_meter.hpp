// How far a load has come, as lines for a person who waits.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

namespace troupe {

// A line every two seconds; none for a load that is over by then.
class load_meter {
 public:
  using clock = std::chrono::steady_clock;

  // `who` begins each line.
  load_meter(std::string who, uint64_t bytes_total, clock::time_point begin);

  // Counts bytes that were read; returns a line if one is due. Any thread.
  std::optional<std::string> add(uint64_t bytes, clock::time_point now);

 private:
  static constexpr std::chrono::seconds period{2};

  const std::string who_;
  const uint64_t total_;
  const clock::time_point begin_;
  std::mutex mutex_;
  uint64_t done_ = 0;
  clock::time_point due_;
};

}  // namespace troupe
