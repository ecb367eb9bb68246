// The device seam in virtual time: real arithmetic, modelled duration.
//
// Takes tasks in the same order as every device, computes them at once on the driving thread, and
// delivers the completion after the time that the cost model gives.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "runtime/device/device_queue.hpp"
#include "runtime/simulation/virtual_time.hpp"

namespace troupe {

// What a stage takes: fixed + rows * per_row, and for `mlp` weight_passes * per_pass beside.
struct stage_cost {
  std::chrono::nanoseconds fixed{0};
  std::chrono::nanoseconds per_row{0};
  std::chrono::nanoseconds per_pass{0};
};

// time = fixed + max(flops / rate, bytes / bandwidth), or where `stages` is set what it says.
struct device_model {
  double flops_per_s = 20e9;
  double bytes_per_s = 15e9;
  std::chrono::nanoseconds fixed{2000};
  std::optional<std::array<stage_cost, stage_kind_count>> stages;
};

class modelled_device final : public device {
 public:
  // Requires: `time` and `math` outlive this.
  modelled_device(virtual_time& time, int node, std::shared_ptr<const kernels::compute> math, device_model model,
                  const stage_ranks& ranks = default_ranks);

  void submit(stage_task& task) override;
  void submit(const expert_task& task) override;
  void stop() override;
  device_statistics statistics() const override { return statistics_; }
  step_account& account() override { return account_; }
  std::string description() const override;
  const kernels::compute& math() const override { return *math_; }

 private:
  void wake();
  void wake_at(uint64_t due_ns);
  void begin();
  uint64_t pass_ns() const;
  std::chrono::nanoseconds duration(const stage_label& label, const task_cost& cost) const;

  virtual_time& time_;
  int node_;
  std::shared_ptr<const kernels::compute> math_;
  device_model model_;
  worker_team team_{1};
  device_queue queue_;
  device_statistics statistics_;
  step_account account_;
  bool busy_ = false;
  uint64_t weight_bytes_ = 0;  // of an expert
  uint64_t due_ns_ = 0;        // the newest time at which the queue is looked at again
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace troupe
