#include "runtime/simulation/virtual_scheduler.hpp"

namespace troupe {

void virtual_scheduler::claim(int node, caf::actor_id before) {
  for (auto id = before + 1; id <= system().latest_actor_id(); ++id) nodes_[id] = node;
}

int virtual_scheduler::node_of(caf::resumable* job) const {
  const auto* actor = dynamic_cast<caf::scheduled_actor*>(job);
  if (actor == nullptr) return -1;
  const auto known = nodes_.find(actor->id());
  return known == nodes_.end() ? -1 : known->second;
}

bool virtual_scheduler::run_one() {
  runnable_.clear();
  for (size_t i = 0; i < jobs.size(); ++i) {
    const int node = node_of(jobs[i]);
    if (!time_.paused(node) && !time_.dead(node)) runnable_.push_back(i);
  }
  if (runnable_.empty()) return false;
  const size_t chosen = runnable_[draws_() % runnable_.size()];
  std::swap(jobs[0], jobs[chosen]);
  const int node = node_of(jobs[0]);
  const auto before = system().latest_actor_id();
  ++runs_;
  if (observer_) observer_(true);
  run_once();
  if (observer_) observer_(false);
  if (node >= 0) claim(node, before);
  return true;
}

// Takes the clock to whatever comes first, CAF's timeouts or our events.
bool virtual_scheduler::advance() {
  auto& caf_clock = clock();
  const bool has_timeout = caf_clock.has_pending_timeout();
  if (!has_timeout && time_.empty()) return false;
  if (has_timeout && (time_.empty() || caf_clock.schedule().begin()->first <= time_.next())) {
    time_.advance_to(caf_clock.schedule().begin()->first);
    caf_clock.trigger_timeout();
  } else {
    caf_clock.current_time = std::max(caf_clock.current_time, time_.next());
    time_.step();
  }
  caf_clock.current_time = std::max(caf_clock.current_time, time_.now());
  return true;
}

bool virtual_scheduler::run_until(const std::function<bool()>& done, std::chrono::nanoseconds limit) {
  clock().current_time = std::max(clock().current_time, time_.now());
  const auto end = time_.now() + limit;
  for (;;) {
    if (done()) return true;
    if (run_one()) continue;
    if (time_.now() > end || !advance()) return done();
  }
}

void virtual_scheduler::stop() {
  // Periodic reminders would keep the base class busy for ever.
  clock().cancel_all();
  time_.clear();
  while (try_run_once()) clock().cancel_all();
}

}  // namespace troupe
