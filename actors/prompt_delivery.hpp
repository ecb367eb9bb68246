// How what the wire brings reaches an actor: into its mailbox, and where that is allowed the actor runs at once.
//
// To wake a scheduler's thread that sleeps takes longer than 64 KiB take to cross. So an actor that was idle handles
// the message on the wire's own thread, which then acts as a worker of CAF's for one message. An actor that runs
// already, or has more to do afterwards, goes on on the scheduler's. What its handler wakes up does too.
#pragma once

#include <caf/all.hpp>

#include <memory>
#include <utility>

#include "runtime/wire/wire.hpp"

namespace troupe {

// Of one actor. `deliver` is for one thread at a time.
class prompt_delivery final : public caf::execution_unit {
 public:
  explicit prompt_delivery(caf::actor to);

  void deliver(caf::mailbox_element_ptr message);

  // CAF's: an actor that this delivery, or the handler it runs, has made runnable.
  void exec_later(caf::resumable* job) override;

 private:
  const caf::actor to_;
  caf::resumable* idle_ = nullptr;  // the actor, when the message found it idle; holds a reference
  bool running_ = false;
};

// A receiver for `data_plane` that delivers to an actor of node `own_node`; `before` sees every message first, on the
// delivering thread. Messages of the node itself come on their sender's thread and go to the scheduler.
// Requires: the actor's end is not the wire's: somebody else keeps that alive.
template <class Before>
wire::receiver deliver_to(caf::actor to, uint16_t own_node, const wire& data_plane, Before before) {
  auto prompt = data_plane.runs_receivers() ? std::make_shared<prompt_delivery>(to) : nullptr;
  return [to = std::move(to), own_node, prompt = std::move(prompt), before = std::move(before)](micro_batch message) {
    before(message);
    if (prompt == nullptr || message.header.source_node == own_node) {
      caf::anon_send(to, std::move(message));
      return;
    }
    prompt->deliver(caf::make_mailbox_element(nullptr, caf::make_message_id(), {}, std::move(message)));
  };
}

}  // namespace troupe
