// A pool of worker threads on this machine's cores: the leader takes tasks in the queue's order and
// runs each with the whole team. See `device` for the contract.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "runtime/device/device_queue.hpp"

namespace troupe {

// Calls `complete`, on the device's thread, and may then run what that sets in motion there: `idle` says whether the
// device has nothing else to do.
using completion_runner = std::function<void(function_ref<void()> complete, function_ref<bool()> idle)>;

class cpu_device final : public device {
 public:
  // `threads` compute threads in all, the leader included; thread i stays on cpus[i] if there is such an entry.
  cpu_device(std::unique_ptr<kernels::compute> math, int threads, const stage_ranks& ranks = default_ranks,
             std::vector<int> cpus = {}, completion_runner runner = {});
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
  bool idle() const;
  stage_task* wait_for_task(std::vector<expert_task>& group);
  void note_pass(uint64_t launch_ns, uint32_t experts);

  std::unique_ptr<kernels::compute> math_;
  const int threads_;
  const std::vector<int> cpus_;
  const completion_runner runner_;
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  device_queue queue_;
  device_statistics statistics_;
  uint64_t pass_ns_ = 0;  // what reading one expert's weights takes at best
  step_account account_;
  bool stopping_ = false;
  std::thread leader_;
};

}  // namespace troupe
