// What the compute threads' leader of a node does between its tasks: it runs the actors that a completion wakes, and
// the wire where compute threads of several processes share the CPUs.
#pragma once

#include <atomic>
#include <memory>

#include "actors/actor_runner.hpp"
#include "runtime/device/cpu_device.hpp"
#include "runtime/wire/ucx_wire.hpp"

namespace troupe {

class leader_between_tasks final : public between_tasks {
 public:
  enum class cpus {
    to_spare,   // actors run here only while the device has nothing else to do
    all_taken,  // by compute threads: nobody else has one for the actors
    shared,     // by more compute threads than there are: who wakes waits its turn
  };

  leader_between_tasks(caf::actor_system& system, int handlers_most, cpus left)
      : runner_(system, handlers_most), left_(left) {}

  // From now on the leader takes the wire's turns, which therefore outlives the device's work. Any thread.
  void take_turns_of(ucx_wire& wire) { wire_ = &wire; }

  void begins() override;
  void complete(function_ref<void()> complete, function_ref<bool()> idle) override;
  bool wait(function_ref<bool()> ready, uint64_t until_ns) override;
  void task_begins() override;
  void end_wait() override;

 private:
  bool begin_turn();

  actor_runner runner_;
  const cpus left_;
  std::atomic<ucx_wire*> wire_{nullptr};
  bool has_turn_ = false;
};

}  // namespace troupe
