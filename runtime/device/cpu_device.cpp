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
                       std::vector<int> cpus, std::shared_ptr<between_tasks> between)
    : math_(std::move(math)),
      threads_(threads),
      cpus_(std::move(cpus)),
      between_(std::move(between)),
      queue_(ranks),
      leader_([this] { lead(); }) {
  pthread_setname_np(leader_.native_handle(), "troupe-device");
}

cpu_device::~cpu_device() { stop(); }

void cpu_device::submit(stage_task& task) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push(task);
    ++changes_;
  }
  changed();
}

void cpu_device::submit(const expert_task& task) {
  {
    const std::lock_guard lock(mutex_);
    if (!queue_.push(task)) return;
    ++changes_;
  }
  changed();
}

void cpu_device::changed() {
  arrived_.notify_one();
  between_->end_wait();
}

void cpu_device::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    ++changes_;
    queue_.clear();
  }
  changed();
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

// The next task, or nothing when the device stops.
stage_task* cpu_device::wait_for_task(std::vector<expert_task>& group) {
  for (;;) {
    uint64_t seen = 0, until_ns = UINT64_MAX;
    {
      const std::lock_guard lock(mutex_);
      seen = changes_.load();
      group.clear();
      if (stopping_) return nullptr;
      if (!queue_.empty()) {
        stage_task* const stage = queue_.take(now_ns(), pass_ns_, group);
        if (stage != nullptr || !group.empty()) return stage;
        if (queue_.held_until_ns() != 0) until_ns = queue_.held_until_ns();
      }
    }
    const auto ready = [&] { return changes_.load() != seen; };
    if (between_->wait(ready, until_ns)) continue;
    std::unique_lock lock(mutex_);
    if (until_ns == UINT64_MAX)
      arrived_.wait(lock, ready);
    else
      arrived_.wait_until(lock, std::chrono::steady_clock::time_point(std::chrono::nanoseconds(until_ns)), ready);
  }
}

// Launches with few rows take little longer than reading the weights: the least counts, and slowly fades.
void cpu_device::note_pass(uint64_t launch_ns, uint32_t experts) {
  constexpr uint64_t fading = 256;
  const uint64_t now = launch_ns / experts;
  pass_ns_ = pass_ns_ == 0 ? now : std::min(now, pass_ns_ + pass_ns_ / fading);
}

void cpu_device::lead() {
  pin_this_thread(cpus_, 0);
  kernels::prepare_thread();
  between_->begins();
  worker_team team(threads_, cpus_);
  std::vector<expert_task> group;
  for (;;) {
    stage_task* const stage = wait_for_task(group);
    between_->task_begins();
    if (stage == nullptr && group.empty()) return;
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
      if (stage == nullptr) note_pass(when.duration_ns(), experts);
      for (const auto& task : group) statistics_.expert_rows += task.end - task.begin;
    }
    account_.ran(label, when);
    const auto complete = [&] {
      if (stage != nullptr)
        stage->completed(when);
      else
        complete_expert_group(group, when);
    };
    between_->complete(complete, [this] { return idle(); });
  }
}

bool cpu_device::idle() const {
  const std::lock_guard lock(mutex_);
  return queue_.empty();
}

}  // namespace troupe
