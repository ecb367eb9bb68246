// CAF's scheduler in virtual time.
//
// A module of ours on CAF's test coordinator: it runs one actor at a time on the driving thread, picks
// the next among the runnable ones by a seeded draw, and moves the clock to the next timeout or event
// only when no actor is runnable. Actors belong to the simulated node whose actor spawned them;
// actors of paused and dead nodes do not run. Traps it avoids: see docs/caf.md.
#pragma once

#include <caf/all.hpp>
#include <caf/scheduler/test_coordinator.hpp>

#include <functional>
#include <random>
#include <unordered_map>

#include "runtime/simulation/virtual_time.hpp"

namespace troupe {

class virtual_scheduler : public caf::scheduler::test_coordinator {
 public:
  using super = caf::scheduler::test_coordinator;
  explicit virtual_scheduler(caf::actor_system& system) : super(system) {}

  // For `actor_system_config::load`.
  static caf::actor_system::module* make(caf::actor_system& system, caf::detail::type_list<>) {
    return new virtual_scheduler(system);
  }
  static virtual_scheduler& of(caf::actor_system& system) {
    return dynamic_cast<virtual_scheduler&>(system.scheduler());
  }

  virtual_time& time() { return time_; }
  void seed(uint64_t value) { draws_.seed(value); }

  // Actors that `spawn` creates, and theirs, belong to `node`.
  template <class Spawn>
  auto on_node(int node, Spawn&& spawn) {
    const auto before = system().latest_actor_id();
    auto created = spawn();
    claim(node, before);
    return created;
  }

  // Runs until `done` holds or nothing is left to do; returns whether it holds. Gives up when virtual
  // time passes `limit` from now.
  bool run_until(const std::function<bool()>& done, std::chrono::nanoseconds limit);

  uint64_t messages_run() const { return runs_; }
  // Called with true before an actor runs and with false after it.
  void observe_runs(std::function<void(bool)> observer) { observer_ = std::move(observer); }

 protected:
  void stop() override;

 private:
  void claim(int node, caf::actor_id before);
  int node_of(caf::resumable* job) const;
  bool run_one();
  bool advance();

  virtual_time time_;
  std::mt19937_64 draws_{1};
  std::unordered_map<caf::actor_id, int> nodes_;
  std::vector<size_t> runnable_;
  std::function<void(bool)> observer_;
  uint64_t runs_ = 0;
};

}  // namespace troupe
