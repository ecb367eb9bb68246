// node: one process of the cluster (or one simulated one).
//
// Joins the coordinator, loads what the placement gives it, spawns and supervises its shards and its
// expert host, passes views on to them, and tells the coordinator regularly that it lives.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "actors/attention_shard.hpp"
#include "actors/expert_host.hpp"
#include "actors/messages.hpp"
#include "actors/node_seams.hpp"

namespace troupe {

using node_actor =
    caf::typed_actor<caf::reacts_to<join_accepted>, caf::reacts_to<join_refused>, caf::reacts_to<node_retired>,
                     caf::reacts_to<node_released>, caf::reacts_to<cluster_view>, caf::reacts_to<load_replica>,
                     caf::reacts_to<drop_replica>, caf::reacts_to<replica_report>, caf::reacts_to<load_done>,
                     caf::reacts_to<shard_report>, caf::reacts_to<host_report>, caf::reacts_to<tick>>;

struct node_environment {
  int32_t wanted_node = -1;
  uint32_t process_token = 0;  // differs from process to process
  uint8_t profiles = 0;        // bit p: numeric profile p runs here
  std::string host;
  uint64_t process = 0;
  caf::strong_actor_ptr coordinator;  // bound
  std::shared_ptr<node_seams> seams;
};

class node_state {
 public:
  static constexpr const char* name = "node";

  node_actor::behavior_type start(node_actor::stateful_pointer<node_state> self, node_environment environment);

 private:
  enum class phase : uint8_t { joining, loading, serving, ended };

  void on_accepted(const join_accepted& message);
  void on_loaded(const load_done& message);
  void on_view(const cluster_view& view);
  void on_tick(const tick& reminder);
  void remind(std::chrono::milliseconds delay);
  void spawn_children(loaded_weights& weights);
  void end(const error& reason, node_end how);
  node_counters totals() const;
  node_account account() const;

  node_actor::stateful_pointer<node_state> self_ = nullptr;
  node_environment environment_;
  phase phase_ = phase::joining;
  node_id node_;
  incarnation_id incarnation_;
  serving_settings settings_;
  std::shared_ptr<const model_config> config_;
  std::vector<attention_shard_actor> shards_;
  expert_host_actor host_;
  std::map<uint16_t, shard_report> shard_reports_;
  host_report host_report_;
  std::shared_ptr<const received_rows> received_;  // the newest of the host's reports
  caf::strong_actor_ptr expert_balancer_;
  std::map<node_id, incarnation_id> peers_;
  epoch_id epoch_;
  node_ready ready_;
  bool in_view_ = false;
  uint32_t chain_ = 0;  // of reminders
  uint64_t heartbeats_ = 0;
  uint64_t cpu_before_ns_ = 0;
};

}  // namespace troupe
