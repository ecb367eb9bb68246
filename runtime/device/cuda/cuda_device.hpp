// The device seam on a GPU: a skeleton that shows the seam is real.
//
// Tasks that know how to enqueue themselves run in the order of one stream; their completion is a host
// function behind them on that stream. What is missing for serving are the stages' kernels: `submit`
// takes `cuda_stage`s only.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <memory>

#include "runtime/device/device.hpp"
#include "runtime/error.hpp"

namespace troupe {

// A stage that puts its work on a stream instead of running on a worker team.
class cuda_stage : public stage_task {
 public:
  virtual result<void> enqueue(cudaStream_t stream) = 0;
  void run(worker_team&) override;  // an error of the caller's: this stage needs a CUDA device
};

class cuda_device final : public device {
 public:
  // GPU number `ordinal` of this machine. Fails: unsupported (no such GPU, or no driver).
  static result<std::unique_ptr<cuda_device>> make(int ordinal);
  ~cuda_device() override;
  cuda_device(const cuda_device&) = delete;
  cuda_device& operator=(const cuda_device&) = delete;

  // Requires: a `cuda_stage`.
  void submit(stage_task& task) override;
  // Requires: never called; grouped expert launches have no kernels yet.
  void submit(const expert_task& task) override;
  void stop() override;
  device_statistics statistics() const override;
  step_account& account() override { return account_; }
  std::string description() const override { return description_; }
  // The host's arithmetic, for what is prepared on the CPU.
  const kernels::compute& math() const override { return *math_; }

 private:
  cuda_device() = default;

  int ordinal_ = 0;
  cudaStream_t stream_ = nullptr;
  std::string description_;
  step_account account_;
  std::unique_ptr<kernels::compute> math_;
  std::atomic<uint64_t> stages_{0};
  std::atomic<bool> stopping_{false};
};

}  // namespace troupe
