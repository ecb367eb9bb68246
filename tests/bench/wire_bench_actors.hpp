// The hop as the serving path makes it: from an actor to an actor of another process, and back.
//
// Delivered as on the serving path too: see `actor_runner`.
#pragma once

#include <caf/all.hpp>

#include "actors/actor_runner.hpp"
#include "tests/bench/wire_bench_parts.hpp"

CAF_BEGIN_TYPE_ID_BLOCK(wire_bench, caf::first_custom_type_id)
CAF_ADD_TYPE_ID(wire_bench, (troupe::micro_batch))
CAF_END_TYPE_ID_BLOCK(wire_bench)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::micro_batch)

namespace troupe::wire_bench {

// An actor system as a node has it: one worker, policy `sharing`.
class actors {
 public:
  actors() {
    config_.add_message_types<caf::id_block::wire_bench>();
    config_.set("scheduler.policy", caf::atom("sharing"));
    config_.set("scheduler.max-threads", size_t{1});
    config_.set("logger.verbosity", caf::atom("quiet"));
    system_ = std::make_unique<caf::actor_system>(config_);
  }
  caf::actor_system& system() { return *system_; }

 private:
  caf::actor_system_config config_;
  std::unique_ptr<caf::actor_system> system_;
};

inline void attach_actor(ucx_wire& wire, uint16_t own_node, const caf::actor& to) {
  wire.attach(0, deliver_to(to, own_node, wire, [](const micro_batch&) {}));
}

inline void serve_actor(const std::string& transports, bool checksum) {
  actors here;
  const auto node = make_wire(wire_options(2, transports, checksum));
  const auto own = std::make_shared<answers>();
  const auto echo = [own](caf::event_based_actor*, ucx_wire* wire) -> caf::behavior {
    return {[own, wire](const micro_batch& message) { (void)wire->send(sender_of(message), own->of(message)); }};
  };
  attach_actor(*node, 2, here.system().spawn(echo, node.get()));
  announce_and_wait(node->listen_address());
}

struct measured_rounds {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<double> times;
  bool done = false;
};

// The rounds of one actor that sends, and sends again when the answer is in its mailbox.
inline caf::behavior measuring_actor(caf::event_based_actor* self, ucx_wire* wire, measured_rounds* rounds,
                                     micro_batch message, size_t wanted) {
  auto began = std::make_shared<double>(0);
  const auto send = [wire, began, message = std::move(message)] {
    *began = now_us();
    (void)wire->send({2, 0, 1}, message);
  };
  return {[send](caf::unit_t) { send(); },
          [send, began, rounds, self, wanted](const micro_batch&) {
            rounds->times.push_back((now_us() - *began) / 2);
            if (rounds->times.size() < wanted) {
              send();
              return;
            }
            self->quit();
            const std::lock_guard lock(rounds->mutex);
            rounds->done = true;
            rounds->changed.notify_all();
          }};
}

inline double time_actor(actors& here, ucx_wire& wire, buffer_pool& pool, uint64_t bytes) {
  measured_rounds rounds;
  const auto wanted = static_cast<size_t>(rounds_for(bytes));
  rounds.times.reserve(wanted * 2);
  const caf::actor actor =
      here.system().spawn(measuring_actor, &wire, &rounds, dispatch_of(pool, bytes), wanted + wanted / 10);
  attach_actor(wire, 1, actor);
  caf::anon_send(actor, caf::unit);
  {
    std::unique_lock lock(rounds.mutex);
    rounds.changed.wait(lock, [&] { return rounds.done; });
  }
  wire.detach(0);
  caf::scoped_actor waiter(here.system());
  waiter->wait_for(actor);
  rounds.times.erase(rounds.times.begin(), rounds.times.begin() + static_cast<std::ptrdiff_t>(wanted / 10));
  return median(rounds.times);
}

}  // namespace troupe::wire_bench
