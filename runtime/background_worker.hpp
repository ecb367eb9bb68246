// One thread for what must not keep an actor or a device waiting: reading files, solving for a placement.
//
// Jobs run one after another in the order of `run`. Whoever owns it outlives what the jobs use; a job reports
// by sending a message. `run` may be called from any thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace troupe {

class background_worker {
 public:
  // `prepare` runs first, on the worker's thread.
  explicit background_worker(std::function<void()> prepare = {});
  // Drops the jobs that wait; waits for the one that runs.
  ~background_worker();
  background_worker(const background_worker&) = delete;
  background_worker& operator=(const background_worker&) = delete;

  void run(std::function<void()> job);

 private:
  void work(const std::function<void()>& prepare);

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::function<void()>> jobs_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace troupe
