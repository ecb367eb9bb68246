#include "actors/prompt_delivery.hpp"

namespace troupe {

prompt_delivery::prompt_delivery(caf::actor to) : caf::execution_unit(&to->home_system()), to_(std::move(to)) {}

void prompt_delivery::deliver(caf::mailbox_element_ptr message) {
  to_->enqueue(std::move(message), this);
  caf::resumable* const job = std::exchange(idle_, nullptr);
  if (job == nullptr) return;
  running_ = true;
  const auto state = job->resume(this, 1);
  running_ = false;
  if (state == caf::resumable::resume_later)
    system().scheduler().enqueue(job);  // takes over the reference
  else
    caf::intrusive_ptr_release(job);
}

void prompt_delivery::exec_later(caf::resumable* job) {
  if (running_)
    system().scheduler().enqueue(job);
  else
    idle_ = job;
}

}  // namespace troupe
