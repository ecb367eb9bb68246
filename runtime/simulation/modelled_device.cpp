#include "runtime/simulation/modelled_device.hpp"

#include <algorithm>

#include "runtime/model/weights.hpp"

namespace troupe {

modelled_device::modelled_device(virtual_time& time, int node, std::shared_ptr<const kernels::compute> math,
                                 device_model model, const stage_ranks& ranks)
    : time_(time), node_(node), math_(std::move(math)), model_(model), queue_(ranks) {}

void modelled_device::submit(stage_task& task) {
  queue_.push(task);
  wake();
}

void modelled_device::submit(const expert_task& task) {
  weight_bytes_ = task.weights->bytes();
  queue_.push(task);
  wake();
}

void modelled_device::stop() {
  *alive_ = false;
  queue_.clear();
}

std::string modelled_device::description() const { return "modelled, " + std::string(math_->description()); }

std::chrono::nanoseconds modelled_device::duration(const stage_label& label, const task_cost& cost) const {
  if (model_.stages) {
    const auto& stage = (*model_.stages)[index_of(label.kind)];
    return stage.fixed + label.rows * stage.per_row + label.weight_passes * stage.per_pass;
  }
  const double seconds = std::max(cost.flops / model_.flops_per_s, cost.bytes / model_.bytes_per_s);
  return model_.fixed + std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
}

// What reading an expert's weights takes by the model.
uint64_t modelled_device::pass_ns() const {
  if (model_.stages) return static_cast<uint64_t>((*model_.stages)[index_of(stage_kind::mlp)].per_pass.count());
  return static_cast<uint64_t>(static_cast<double>(weight_bytes_) / model_.bytes_per_s * 1e9);
}

// Starts in an event of its own, so that everything submitted at this moment is seen together.
void modelled_device::wake() {
  if (busy_) return;
  busy_ = true;
  time_.after({}, node_, [this, alive = alive_] {
    if (*alive) begin();
  });
}

// Looks at the queue again when what it holds back is due, unless that is planned already.
void modelled_device::wake_at(uint64_t due_ns) {
  if (due_ns == 0 || due_ns == due_ns_) return;
  due_ns_ = due_ns;
  time_.after(std::chrono::nanoseconds(due_ns - virtual_ns(time_.now())), node_, [this, alive = alive_] {
    if (*alive) wake();
  });
}

void modelled_device::begin() {
  auto group = std::make_shared<std::vector<expert_task>>();
  const uint64_t now_ns = virtual_ns(time_.now());
  stage_task* stage = queue_.take(now_ns, pass_ns(), *group);
  if (stage == nullptr && group->empty()) {
    busy_ = false;
    wake_at(queue_.held_until_ns());
    return;
  }
  const stage_label label = stage != nullptr ? stage->label() : label_of(*group);
  const auto cost = duration(label, stage != nullptr ? stage->cost() : expert_group_cost(*group));
  if (stage != nullptr) {
    ++statistics_.stages;
    stage->run(team_);
  } else {
    ++statistics_.expert_launches;
    statistics_.weight_passes += run_expert_group(*math_, *group, team_);
    for (const auto& task : *group) statistics_.expert_rows += task.end - task.begin;
  }
  statistics_.busy_ns += static_cast<uint64_t>(cost.count());
  const stage_time when{now_ns, now_ns + static_cast<uint64_t>(cost.count())};
  time_.after(cost, node_, [this, alive = alive_, stage, group, label, when] {
    if (!*alive) return;
    account_.ran(label, when);
    if (stage != nullptr)
      stage->completed(when);
    else
      complete_expert_group(*group, when);
    // What this completion makes ready at this moment counts for what comes next.
    busy_ = false;
    wake();
  });
}

}  // namespace troupe
