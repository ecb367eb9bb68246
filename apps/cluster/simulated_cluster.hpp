// A whole cluster in one process and in virtual time, with real arithmetic.
//
// The same actors as live, on modelled devices and wires; control messages between simulated processes
// pass through proxies that delay and drop them. Processes can crash, be paused, resumed and restarted.
// Used by one thread.
#pragma once

#include <caf/all.hpp>

#include <map>
#include <memory>
#include <vector>

#include "actors/node.hpp"
#include "apps/cluster/front.hpp"
#include "runtime/accounting/run_bound.hpp"
#include "runtime/accounting/timeline.hpp"
#include "runtime/simulation/modelled_device.hpp"
#include "runtime/simulation/modelled_wire.hpp"
#include "runtime/simulation/virtual_scheduler.hpp"

namespace troupe {

// A model loaded once and shared by all simulated nodes.
struct simulated_model {
  std::shared_ptr<const model_config> config;
  std::shared_ptr<const checkpoint> files;
  std::shared_ptr<const kernels::compute> math;
  std::shared_ptr<const shard_weights> shard;
  std::map<std::pair<uint32_t, uint32_t>, std::shared_ptr<const expert_weights>> experts;

  // Fails: as the loaders do.
  static result<std::shared_ptr<simulated_model>> load(const std::string& directory,
                                                       std::shared_ptr<const kernels::compute> math);
};

struct simulation_options {
  serving_settings settings;
  uint64_t seed = 1;  // of the order in which actors run
  device_model device;
  link_model link;                                      // of every directed link that `settings.links` does not shape
  std::chrono::nanoseconds control_latency{100'000};    // of control messages between processes
  std::chrono::nanoseconds crash_detection{1'000'000};  // until a crash breaks connections
  // Asked in place of the one that `settings.rebalance` names; and how long it takes.
  placement_policy policy;
  std::chrono::nanoseconds solve_time{1'000'000};
  std::chrono::nanoseconds load_time{5'000'000};  // of weights from the checkpoint, a node's or one expert's
  // Whether an expert can be read from the checkpoint by a node; empty: yes.
  std::function<bool(uint32_t layer, uint32_t expert)> readable;
};

// What one request has produced so far.
struct simulated_stream {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  bool ended = false;
  std::optional<error> failure;
  finish_reason reason = finish_reason::stop;
};

class simulated_cluster {
 public:
  simulated_cluster(std::shared_ptr<simulated_model> model, simulation_options options);
  ~simulated_cluster();

  // Runs until every node serves. Returns false when that takes more than ten virtual seconds.
  bool start();
  // Submits a request; the stream fills while the simulation runs. The reference stays valid.
  const simulated_stream& submit(generation_request request);
  void cancel(size_t stream);
  bool run_until(const std::function<bool()>& done, std::chrono::nanoseconds limit);
  bool run_for(std::chrono::nanoseconds duration);
  bool all_ended() const;

  void crash(uint16_t node);
  void pause(uint16_t node);
  void resume(uint16_t node);
  void restart(uint16_t node);  // a new process takes the node's place
  void join(uint16_t node);     // one more process, of a number that is free
  void drain(uint16_t node);
  bool released(uint16_t node) const;  // it was drained, and its process has ended

  const std::vector<std::unique_ptr<simulated_stream>>& streams() const { return streams_; }
  modelled_network& network() { return *network_; }
  device_statistics device_totals() const;
  // Bytes of data-plane buffers that are referenced now, on all nodes.
  uint64_t buffers_in_use() const;
  // Of all nodes together: the largest of each time since the start. The chain is as of the last heartbeat.
  run_times times() const;
  // Writes timelines of the nodes from now on, and ends them.
  // Fails: as `timeline::open` and `join_timelines`.
  result<void> begin_timelines(const std::filesystem::path& file);
  result<void> end_timelines();
  board_snapshot board() const { return front_.board->read(); }
  // Experts that a node holds now, and what they take, by its own count; zero for one that is not there.
  uint64_t replicas_at(uint16_t node) const;
  virtual_scheduler& scheduler() { return virtual_scheduler::of(*system_); }

 private:
  class seams;
  struct process {
    int label = 0;
    node_actor actor;
    std::shared_ptr<seams> parts;
  };

  caf::strong_actor_ptr bind(int from, int to, const caf::strong_actor_ptr& handle);
  int label_of(node_id node) const;
  void spawn_node(uint16_t node, int label);

  std::shared_ptr<simulated_model> model_;
  simulation_options options_;
  caf::actor_system_config config_;
  std::unique_ptr<caf::actor_system> system_;
  std::shared_ptr<modelled_network> network_;
  front_actors front_;
  std::map<uint16_t, process> processes_;
  std::vector<process> graveyard_;
  std::map<std::pair<int, const void*>, caf::strong_actor_ptr> proxies_;
  std::vector<std::pair<int, caf::strong_actor_ptr>> proxies_to_;
  std::vector<std::unique_ptr<simulated_stream>> streams_;
  std::vector<uint64_t> tickets_;
  std::filesystem::path timeline_file_;
  std::vector<std::unique_ptr<timeline>> timelines_;
  int labels_ = 0;
};

}  // namespace troupe
