#include "actors/actor_runner.hpp"

namespace troupe {

namespace {
thread_local actor_runner* at_work = nullptr;
}

actor_runner* actor_runner::current() { return at_work; }

void actor_runner::run(function_ref<void()> work, function_ref<bool()> here) {
  at_work = this;
  work();
  size_t next = 0;
  for (int ran = 0; ran < most_ && next < ready_.size() && here(); ++ran) {
    auto* const job = ready_[next++];
    if (job->resume(this, 1) == caf::resumable::resume_later)
      ready_.push_back(job);
    else
      caf::intrusive_ptr_release(job);
  }
  at_work = nullptr;
  // An actor that spawned another has left a reference to its system's logger on this thread, for which the system's
  // end would wait as long as the thread lives.
  caf::logger::set_current_actor_system(nullptr);
  for (; next < ready_.size(); ++next) system().scheduler().enqueue(ready_[next]);  // takes over the reference
  ready_.clear();
}

void actor_runner::deliver(caf::abstract_actor& to, caf::mailbox_element_ptr message) {
  posting_ = true;
  to.enqueue(std::move(message), this);
  posting_ = false;
}

void actor_runner::exec_later(caf::resumable* job) {
  if (posting_)
    ready_.push_back(job);
  else
    system().scheduler().enqueue(job);
}

}  // namespace troupe
