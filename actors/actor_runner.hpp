// Actors that run on the thread that has a message for them.
//
// To wake a scheduler's thread that sleeps takes longer than most handlers run, and longer than 64 KiB take to cross.
// So the wire's thread, and a device's that would wait for the outcome anyway, act as workers of CAF's for a moment:
// actors that were idle handle their messages there and then. An actor that runs already goes on where it is.
#pragma once

#include <caf/all.hpp>

#include <memory>
#include <utility>
#include <vector>

#include "runtime/device/worker_team.hpp"
#include "runtime/wire/wire.hpp"

namespace troupe {

// Of one thread at a time.
class actor_runner final : public caf::execution_unit {
 public:
  // Runs at most `most` handlers for each `run`; what is to do then goes to the scheduler.
  explicit actor_runner(caf::actor_system& system, int most) : caf::execution_unit(&system), most_(most) {}

  // Calls `work`; then, as long as `here` says so, runs the actors that were idle and got messages by `post`, from
  // `work` or from these actors. Whom they wake by other means is the scheduler's. Not nested.
  void run(function_ref<void()> work, function_ref<bool()> here);

  // As `post`, when this runner is at work on this thread.
  void deliver(caf::abstract_actor& to, caf::mailbox_element_ptr message);

  // The runner whose `run` is at work on this thread, or null.
  static actor_runner* current();

  // CAF's: an actor that has become runnable.
  void exec_later(caf::resumable* job) override;

 private:
  const int most_;
  std::vector<caf::resumable*> ready_;  // each holds a reference
  bool posting_ = false;
};

// Sends without a sender. Where a runner is at work on this thread it may run the receiver.
template <class Actor, class Message>
void post(const Actor& to, Message&& message) {
  if (auto* runner = actor_runner::current())
    runner->deliver(*to.operator->(),
                    caf::make_mailbox_element(nullptr, caf::make_message_id(), {}, std::forward<Message>(message)));
  else
    caf::anon_send(to, std::forward<Message>(message));
}

// A receiver for `data_plane` that delivers to an actor of node `own_node`; `before` sees every message first, on the
// delivering thread. Another node's message is handled on the wire's thread where that runs handlers, with as much of
// what it sets in motion as the wire allows; the node's own messages come on their sender's thread.
// Requires: the actor's end is not the wire's: somebody else keeps that alive.
template <class Before>
wire::receiver deliver_to(caf::actor to, uint16_t own_node, const wire& data_plane, Before before) {
  const auto most = static_cast<int>(data_plane.handlers_most());
  auto runner = most > 0 ? std::make_shared<actor_runner>(to->home_system(), most) : nullptr;
  return [to = std::move(to), own_node, runner = std::move(runner), before = std::move(before)](micro_batch message) {
    before(message);
    if (runner == nullptr || message.header.source_node == own_node)
      post(to, std::move(message));
    else
      runner->run([&] { post(to, std::move(message)); }, [] { return true; });
  };
}

}  // namespace troupe
