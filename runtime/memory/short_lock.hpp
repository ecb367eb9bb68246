// A lock for sections of a few instructions.
//
// Where a mutex costs two locked instructions an uncontended section, this costs one, which counts on
// the path of every message. A waiter yields, since on a busy machine the holder may not be running.
#pragma once

#include <sched.h>

#include <atomic>

namespace troupe {

class short_lock {
 public:
  void lock() {
    while (locked_.exchange(true, std::memory_order_acquire))
      while (locked_.load(std::memory_order_relaxed)) sched_yield();
  }
  void unlock() { locked_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> locked_{false};
};

}  // namespace troupe
