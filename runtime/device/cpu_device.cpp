#include "runtime/device/cpu_device.hpp"

#include <pthread.h>

#include <chrono>

#include "runtime/device/cpu_set.hpp"

namespace troupe {

namespace {

uint64_t now_ns() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

}  // namespace

cpu_device::cpu_device(std::unique_ptr<kernels::compute> math, int threads, const stage_ranks& ranks,
                       std::vector<int> cpus)
    : math_(std::move(math)), threads_(threads), cpus_(std::move(cpus)), queue_(ranks), leader_([this] { lead(); }) {
  pthread_setname_np(leader_.native_handle(), "troupe-device");
}

cpu_device::~cpu_device() { stop(); }

void cpu_device::submit(stage_task& task) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push(task);
  }
  arrived_.notify_one();
}

void cpu_device::submit(const expert_task& task) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push(task);
  }
  arrived_.notify_one();
}

void cpu_device::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    queue_.clear();
  }
  arrived_.notify_one();
  if (leader_.joinable()) leader_.join();
}

device_statistics cpu_device::statistics() const {
  const std::lock_guard lock(mutex_);
  return statistics_;
}

std::string cpu_device::description() const {
  return "cpu, " + std::to_string(threads_) + (threads_ == 1 ? " thread, " : " threads, ") +
         std::string(math_->description());
}

void cpu_device::lead() {
  pin_this_thread(cpus_, 0);
  kernels::prepare_thread();
  worker_team team(threads_, cpus_);
  std::vector<expert_task> group;
  for (;;) {
    stage_task* stage = nullptr;
    {
      std::unique_lock lock(mutex_);
      arrived_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
      if (stopping_) return;
      stage = queue_.take(group);
    }
    const stage_label label = stage != nullptr ? stage->label() : label_of(group);
    stage_time when{now_ns(), 0};
    uint32_t experts = 0;
    if (stage != nullptr)
      stage->run(team);
    else
      experts = run_expert_group(*math_, group, team);
    when.end_ns = now_ns();
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      statistics_.busy_ns += when.duration_ns();
      statistics_.stages += stage != nullptr ? 1 : 0;
      statistics_.expert_launches += stage == nullptr ? 1 : 0;
      statistics_.weight_passes += experts;
      for (const auto& task : group) statistics_.expert_rows += task.end - task.begin;
    }
    account_.ran(label, when);
    if (stage != nullptr)
      stage->completed(when);
    else
      complete_expert_group(group, when);
  }
}

}  // namespace troupe
