// A pool of worker threads on this machine's cores: the leader takes tasks in the queue's order and
// runs each with the whole team. See `device` for the contract.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "runtime/device/device_queue.hpp"

namespace troupe {

// What a device's leader does between its tasks; on its thread but for `end_wait`.
class between_tasks {
 public:
  virtual ~between_tasks() = default;
  // Before the first task.
  virtual void begins() {}
  // A task has run. Calls `complete`, and may then run what that sets in motion; `idle` says whether the device has
  // nothing else to do.
  virtual void complete(function_ref<void()> complete, function_ref<bool()> idle) {
    (void)idle;
    complete();
  }
  // There is nothing to do. Waits until `ready()` or until that time of the steady clock, or shorter; `ready` takes no
  // lock. False, at once: the device should wait by itself.
  virtual bool wait(function_ref<bool()> ready, uint64_t until_ns) {
    (void)ready, (void)until_ns;
    return false;
  }
  // The next task is taken and runs after this.
  virtual void task_begins() {}
  // Any thread: what `ready` says may have changed.
  virtual void end_wait() {}
};

class cpu_device final : public device {
 public:
  // `threads` compute threads in all, the leader included; thread i stays on cpus[i] if there is such an entry.
  cpu_device(std::unique_ptr<kernels::compute> math, int threads, const stage_ranks& ranks = default_ranks,
             std::vector<int> cpus = {}, std::shared_ptr<between_tasks> between = std::make_shared<between_tasks>());
  ~cpu_device() override;

  void submit(stage_task& task) override;
  void submit(const expert_task& task) override;
  void stop() override;
  device_statistics statistics() const override;
  step_account& account() override { return account_; }
  std::string description() const override;
  const kernels::compute& math() const override { return *math_; }

 private:
  void lead();
  void changed();
  bool idle() const;
  stage_task* wait_for_task(std::vector<expert_task>& group);
  void note_pass(uint64_t launch_ns, uint32_t experts);

  std::unique_ptr<kernels::compute> math_;
  const int threads_;
  const std::vector<int> cpus_;
  const std::shared_ptr<between_tasks> between_;
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  device_queue queue_;
  device_statistics statistics_;
  uint64_t pass_ns_ = 0;  // what reading one expert's weights takes at best
  step_account account_;
  bool stopping_ = false;
  std::atomic<uint64_t> changes_{0};  // of what `wait_for_task` waits for; written with `mutex_` held
  std::thread leader_;
};

}  // namespace troupe
