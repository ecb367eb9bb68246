// The wire's counters as its threads write them.
#pragma once

#include <atomic>
#include <cstdint>

namespace troupe {

// Relaxed: each is read on its own.
class relaxed_counter {
 public:
  void add(uint64_t amount = 1) { value_.fetch_add(amount, std::memory_order_relaxed); }
  void subtract(uint64_t amount = 1) { value_.fetch_sub(amount, std::memory_order_relaxed); }
  uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

struct ucx_counters {
  relaxed_counter messages_sent, bytes_sent, bytes_in_flight;
  relaxed_counter messages_received, bytes_received;
  relaxed_counter malformed, stale, unaddressed, overflowed, cut_off;
  relaxed_counter sequence_gaps, held, quarantined, refused_greetings, peers_up, sleeps;
};

}  // namespace troupe
