// Virtual time: one queue of events, one clock, and which simulated nodes run.
//
// Events and CAF's own timeouts share the clock of `virtual_scheduler`. A node may be paused (its events
// and messages wait) or dead (they are dropped). Everything runs on the thread that drives the
// simulation, so nothing here is locked; the same seed gives the same history.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace troupe {

using virtual_clock = std::chrono::steady_clock;

// A time as the counters and headers of the data plane write it.
inline uint64_t virtual_ns(virtual_clock::time_point time) {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count());
}

class virtual_time {
 public:
  using action = std::function<void()>;

  virtual_clock::time_point now() const { return now_; }
  void advance_to(virtual_clock::time_point time) { now_ = std::max(now_, time); }

  // Runs `what` on behalf of `node` at `time`; equal times in the order of scheduling.
  void schedule(virtual_clock::time_point time, int node, action what);
  void after(std::chrono::nanoseconds delay, int node, action what) { schedule(now_ + delay, node, std::move(what)); }

  bool empty() const { return events_.empty(); }
  virtual_clock::time_point next() const { return events_.begin()->first.first; }
  // Takes the clock to the next event and runs it (or holds or drops it, as its node's state says).
  void step();

  bool paused(int node) const { return paused_.contains(node); }
  bool dead(int node) const { return dead_.contains(node); }
  void pause(int node) { paused_.insert(node); }
  void resume(int node);
  void kill(int node);
  void revive(int node) { dead_.erase(node); }
  void clear() {
    events_.clear();
    held_.clear();
  }

 private:
  struct event {
    int node = 0;
    action what;
  };

  virtual_clock::time_point now_{std::chrono::hours(1)};
  uint64_t sequence_ = 0;
  std::map<std::pair<virtual_clock::time_point, uint64_t>, event> events_;
  std::vector<event> held_;
  std::set<int> paused_;
  std::set<int> dead_;
};

}  // namespace troupe
