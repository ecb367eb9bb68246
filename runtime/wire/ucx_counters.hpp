// The wire's counters as its threads write them.
#pragma once

#include <atomic>
#include <cstdint>

namespace troupe {

// Written by any thread, read by any; each on its own.
class shared_counter {
 public:
  void add(uint64_t amount = 1) { value_.fetch_add(amount, std::memory_order_relaxed); }
  uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// Written by the progress thread alone, which saves the locked instruction; read by any.
class progress_counter {
 public:
  void add(uint64_t amount = 1) { value_.store(get() + amount, std::memory_order_relaxed); }
  void subtract(uint64_t amount = 1) { value_.store(get() - amount, std::memory_order_relaxed); }
  uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

struct ucx_counters {
  progress_counter messages_sent, bytes_sent, messages_received, bytes_received;
  progress_counter malformed, stale, unaddressed, overflowed, cut_off;
  progress_counter sequence_gaps, held, assemblies, quarantined, refused_greetings, bulk_fragments, peers_up, links,
      reconnections, receive_queues_blocked, sleeps;
  shared_counter messages_here, bytes_here, unaddressed_here;  // to this node itself
};

}  // namespace troupe
