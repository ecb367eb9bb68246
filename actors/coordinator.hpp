// coordinator: one a cluster; membership, verdicts and epochs.
//
// Assigns node numbers and incarnations, asks the placement policy for the first table, and publishes a view
// (an epoch) whenever membership changes or the expert balancer has another table. It drains nodes: one that
// is to go keeps nothing, is released and ends. It holds soft state only. A node is dead when its connection
// breaks or when its heartbeats stop for `verdict_ms`; a dead incarnation is never served again.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "actors/cluster_board.hpp"
#include "actors/messages.hpp"
#include "runtime/model/config.hpp"
#include "runtime/serving/settings.hpp"

namespace troupe {

using coordinator_actor =
    caf::typed_actor<caf::reacts_to<join_request>, caf::reacts_to<node_ready>, caf::reacts_to<node_failed>,
                     caf::reacts_to<heartbeat>, caf::reacts_to<node_account>, caf::reacts_to<publish_placement>,
                     caf::reacts_to<drain_request>, caf::reacts_to<tick>>;

struct coordinator_environment {
  serving_settings settings;
  std::shared_ptr<const model_config> config;
  // The profile is the best that all nodes have: joins wait until every node has asked.
  bool choose_profile = false;
  // Dispatch and combine follow the profile (f32: f32, amx_bf16: bf16) unless configured.
  bool default_dispatch = true;
  bool default_combine = true;
  caf::strong_actor_ptr api_server;
  caf::strong_actor_ptr prefill_balancer;
  caf::strong_actor_ptr decode_balancer;
  caf::strong_actor_ptr expert_balancer;
  std::shared_ptr<cluster_board> board;
  // A peer's handle as the head reaches it.
  std::function<caf::strong_actor_ptr(node_id peer, const caf::strong_actor_ptr&)> bind;
  // Called on the coordinator's thread; must not block. May be empty.
  std::function<void(node_id, uint64_t process)> on_dead;
  // A node has been drained and its process ends by itself. As above.
  std::function<void(node_id)> on_released;
};

class coordinator_state {
 public:
  static constexpr const char* name = "coordinator";

  coordinator_actor::behavior_type start(coordinator_actor::stateful_pointer<coordinator_state> self,
                                         coordinator_environment environment);

 private:
  enum class phase : uint8_t { empty, asked, loading, live };

  struct slot {
    phase state = phase::empty;
    join_request request;
    incarnation_id incarnation;
    node_ready ready;
    caf::strong_actor_ptr handle;  // bound
    caf::actor_clock::time_point last_heard;
    epoch_id acknowledged;
    node_counters counters;
    std::string schedule;
    std::vector<layer_account> layers;
    bool draining = false;
    epoch_id draining_since;  // the first view that says so
  };

  void on_join(const join_request& message);
  void accept(uint16_t node);
  void choose_profile();
  void on_ready(const node_ready& message);
  void on_heartbeat(const heartbeat& message);
  void on_account(const node_account& message);
  void on_publish(const publish_placement& message);
  void on_drain(const drain_request& message);
  void release_drained();
  void tell_acknowledged();
  void on_down(const caf::down_msg& message);
  void on_tick();
  void declare_dead(uint16_t node, const std::string& reason);
  void publish();
  void show();
  placement_request placement_question() const;
  std::optional<uint16_t> slot_for(const join_request& message) const;
  void refuse(const join_request& message, const std::string& reason);

  coordinator_actor::stateful_pointer<coordinator_state> self_ = nullptr;
  coordinator_environment environment_;
  std::vector<slot> slots_;
  placement_table placement_;
  std::shared_ptr<const placement_table> published_;
  epoch_id epoch_;
  epoch_id acknowledged_;  // by all live nodes, as the expert balancer knows it
  uint32_t incarnations_ = 0;
  caf::actor_clock::time_point last_tick_;
  bool profile_known_ = false;
  bool formed_ = false;  // every node has been live once
};

}  // namespace troupe
