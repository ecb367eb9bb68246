#include "apps/cluster/leader_between_tasks.hpp"

#include "runtime/patient_thread.hpp"

namespace troupe {

void leader_between_tasks::begins() {
  if (left_ == cpus::shared) be_patient();
}

void leader_between_tasks::complete(function_ref<void()> complete, function_ref<bool()> idle) {
  const bool sends = begin_turn();
  runner_.run(complete, [&] { return left_ != cpus::to_spare || idle(); });
  if (sends) wire_.load()->progress();
}

bool leader_between_tasks::wait(function_ref<bool()> ready, uint64_t until_ns) {
  if (!begin_turn()) return false;
  wire_.load()->wait(ready, until_ns);
  return true;
}

void leader_between_tasks::task_begins() {
  if (has_turn_) wire_.load()->end_turn();
  has_turn_ = false;
}

void leader_between_tasks::end_wait() {
  if (auto* const wire = wire_.load()) wire->end_wait();
}

bool leader_between_tasks::begin_turn() {
  auto* const wire = wire_.load();
  if (!has_turn_ && wire != nullptr) has_turn_ = wire->begin_turn();
  return has_turn_;
}

}  // namespace troupe
