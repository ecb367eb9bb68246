// Sleeping until something arrives, and turns: another thread does the progress thread's work for a while.
//
// Who sleeps has looked for work left by other threads after saying so, and has armed UCX. Both descriptors that end a
// sleep are then looked at by one thread: by the one that waits in its turn, or by the progress thread, to which the
// gate is open at all other times. So ending a turn takes no switch of threads.
#include <algorithm>

#include "runtime/wire/ucx_engine.hpp"
#include "runtime/wire/wire_time.hpp"

namespace troupe {

namespace {
constexpr uint64_t ms = 1'000'000;

// A turn ends with what there is to do, if that is not more than so.
constexpr int last_steps_most = 32;
}  // namespace

uint64_t ucx_wire::engine::sleep_max_ns() const {
  auto longest_ms = static_cast<uint64_t>(links_->sleep_max_ms(wire_time_ns()));
  if (receiver_->has_held()) longest_ms = 1;   // nothing tells of memory given back
  if (receiver_->has_ready()) longest_ms = 1;  // nor of a gap
  if (sender_->has_quarantined()) longest_ms = std::min<uint64_t>(longest_ms, 50);
  return longest_ms * ms;
}

// Announces the sleep. False: there is something to do, and `cancel_sleep` is next.
bool ucx_wire::engine::may_sleep() {
  worker_->announce_sleep();
  return !sender_->has_submitted() && !has_commands_.load() && !stop_.load() && worker_->arm();
}

// The progress thread's. It has no turn while it sleeps.
void ucx_wire::engine::sleep() {
  uint64_t longest_ns = 0;
  {
    const std::lock_guard turn(turn_);
    if (!may_sleep()) return worker_->cancel_sleep();
    longest_ns = sleep_max_ns();
    wakes_at_ns_ = wire_time_ns() + longest_ns;
    counters_.sleeps.add();
  }
  worker_->wait_at_gate(longest_ns);
  const std::lock_guard turn(turn_);
  wakes_at_ns_ = 0;
  worker_->cancel_sleep();
}

bool ucx_wire::engine::begin_turn() {
  if (!turn_.try_lock()) return false;
  whose_turn_ = std::this_thread::get_id();
  worker_->cancel_sleep();
  return true;
}

void ucx_wire::engine::progress() {
  for (int steps = 0; steps < last_steps_most && step(wire_time_ns()); ++steps) {}
}

void ucx_wire::engine::wait(function_ref<bool()> ready, uint64_t until_ns) {
  waits_ = true;
  worker_->close_gate();
  uint64_t now_ns = wire_time_ns();
  while (!stop_.load(std::memory_order_relaxed)) {
    const bool any = step(now_ns);
    now_ns = wire_time_ns();
    if (ready() || now_ns >= until_ns) break;
    if (any) continue;
    if (may_sleep() && !ready()) {
      counters_.sleeps.add();
      worker_->wait(std::min(sleep_max_ns(), until_ns - now_ns));
    }
    worker_->cancel_sleep();
    now_ns = wire_time_ns();
  }
  worker_->open_gate();
  waits_ = false;
}

void ucx_wire::engine::end_wait() {
  if (waits_.load()) worker_->wake();
}

void ucx_wire::engine::end_turn() {
  // What is left after so many steps is the progress thread's.
  int steps = 0;
  for (;;) {
    while (step(wire_time_ns()) && ++steps < last_steps_most) {}
    if (may_sleep() || ++steps >= last_steps_most) break;
    worker_->cancel_sleep();
  }
  const bool over = wire_time_ns() + sleep_max_ns() < wakes_at_ns_;
  if (steps >= last_steps_most || over) worker_->wake();
  whose_turn_ = std::thread::id();
  turn_.unlock();
}

}  // namespace troupe
