// The threads that run one device task together.
//
// A team has a leader (the thread that took the task) and helpers. `parallel` splits work into
// `count` independent items and returns when all are done. Items may run on any member in any order,
// which never shows in a result: every output element is one sum in one fixed order (docs/numerics.md).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "kernels/compute.hpp"
#include "runtime/function_ref.hpp"

namespace troupe {

// What one member owns while it works.
struct worker_memory {
  kernels::scratch kernel;     // handed to kernels
  kernels::scratch workspace;  // rows that a task gathers
};

// Hears of the sections of a team's work as they begin, on the leader's thread; for measurements.
class section_listener {
 public:
  virtual ~section_listener() = default;
  // `name` names what is computed until the next section begins; it lives for ever.
  virtual void begins(const char* name) = 0;
};

// What a member knows of the items around one that it runs.
struct item_run {
  int begin = 0;  // it has run items [begin, this one) before, without another in between
  int next = -1;  // the item that it takes next, unless another member is faster; negative: unknown
};

class worker_team {
 public:
  // Starts `threads - 1` helpers; helper i stays on cpus[i] if there is such an entry (the leader's is cpus[0], which
  // it sees to itself). Requires: threads >= 1.
  explicit worker_team(int threads, std::span<const int> cpus = {});
  ~worker_team();
  worker_team(const worker_team&) = delete;
  worker_team& operator=(const worker_team&) = delete;

  int size() const { return static_cast<int>(memory_.size()); }

  // Runs `item(i, memory)` for every i in [0, count). Each member begins with its own share of neighbouring items, in
  // ascending order, the same of the same count each time, so that what it left in its caches is there again; who is
  // done helps the others from the ends of theirs. Called by the leader only, never nested.
  void parallel(const char* section, int count, function_ref<void(int, worker_memory&)> item);
  // The same for an item that wants to know what its member runs before and after it.
  void parallel_runs(const char* section, int count, function_ref<void(int, const item_run&, worker_memory&)> item);
  // The same on the leader alone, for work that is done sooner than a helper would begin.
  void alone(const char* section, int count, function_ref<void(int, worker_memory&)> item);

  // Null: nobody listens.
  void listen(section_listener* listener) { listener_ = listener; }

 private:
  using run_of_items = function_ref<void(int, const item_run&, worker_memory&)>;

  void begin_round();
  void help(int member);
  void work(int member);

  // Items [begin, end) of a member's share that nobody has taken yet: two halves of one word, so that both ends are
  // taken in one step.
  struct alignas(64) item_share {
    std::atomic<uint64_t> left{0};
  };

  std::vector<worker_memory> memory_;
  std::vector<item_share> shares_;  // one for each member
  std::vector<std::thread> helpers_;
  std::mutex mutex_;
  std::condition_variable start_;
  std::atomic<uint64_t> round_{0};
  std::atomic<int> asleep_{0};  // helpers that wait at `start_`
  std::atomic<int> working_{0};
  const run_of_items* item_ = nullptr;
  std::atomic<bool> stopping_{false};
  section_listener* listener_ = nullptr;
};

}  // namespace troupe
