// expert_balancer: one a deployment unit, beside the coordinator.
//
// Keeps the history of rows that experts received (and of experts that tokens chose together), asks the placement
// policy for a plan (on a period, when imbalance passes a threshold, or when nodes come, go or drain), and carries the
// plan out move by move: nodes load replicas in the background, the coordinator publishes a table that names them, and
// the old ones are freed when every shard has left the table before. Serving goes on as if nothing happened: nothing
// here is on a step's way. The policy runs on a thread of its own; whatever it does wrong becomes a sentence, and the
// placement stays. What to do next is decided by `plan_execution`.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/cluster_board.hpp"
#include "actors/messages.hpp"
#include "runtime/placement/plan_execution.hpp"
#include "runtime/serving/settings.hpp"

namespace troupe {

using expert_balancer_actor =
    caf::typed_actor<caf::reacts_to<view_ptr>, caf::reacts_to<expert_load>, caf::reacts_to<co_activation>,
                     caf::reacts_to<replica_report>, caf::reacts_to<epoch_acknowledged>, caf::reacts_to<plan_made>,
                     caf::reacts_to<tick>>;

struct expert_balancer_environment {
  serving_settings settings;
  std::vector<bool> moe_layers;  // one entry a layer of the model
  uint32_t experts = 0;
  uint32_t rows_per_token = 8;
  placement_policy policy;  // empty: experts move only when a node drains
  std::shared_ptr<cluster_board> board;
  // Runs a job that may take long on another thread (in simulation: later), one after another.
  std::function<void(std::function<void()>)> run_behind;
};

class expert_balancer_state {
 public:
  static constexpr const char* name = "expert_balancer";

  expert_balancer_actor::behavior_type start(expert_balancer_actor::stateful_pointer<expert_balancer_state> self,
                                             expert_balancer_environment environment);

 private:
  using time_point = caf::actor_clock::time_point;

  void on_view(const view_ptr& view);
  void on_report(const replica_report& message);
  void on_plan(const plan_made& message);
  void on_tick();

  void end_window();
  void consider();
  // Why the policy is to be asked; empty: it is not.
  std::string urgent_reason(bool members_changed) const;
  std::string ordinary_reason() const;
  void ask_policy(const std::string& why);
  void carry_on();
  void send_load(const plan_execution::load_order& order);
  void send_drop(const replica_place& place);
  void give_up_late_moves();
  void publish(placement_table table);
  void add_shares(placement_table& table) const;
  uint32_t slots_per_node() const;
  const cluster_member* live_member(uint16_t node) const;
  uint32_t node_count() const { return environment_.settings.nodes_limit(); }
  void active() { last_activity_ = self_->clock().now(); }
  void show();

  expert_balancer_actor::stateful_pointer<expert_balancer_state> self_ = nullptr;
  expert_balancer_environment environment_;
  view_ptr view_;
  plan_execution execution_;
  std::vector<serving_node> members_;
  std::optional<load_collector> collector_;
  load_history history_;
  time_point window_began_;
  time_point asked_;  // the policy, last
  time_point last_activity_;
  time_point published_;    // a table, last
  uint64_t questions_ = 0;  // number of the newest
  std::vector<serving_node> asked_members_;
  bool solving_ = false;
  bool fall_back_ = false;                     // a node drains, and the policy had no answer
  std::map<replica_place, time_point> loads_;  // ordered, and when
  std::map<replica_place, time_point> drops_;
  uint64_t expert_bytes_ = 1;
  board_rebalance shown_;
  recorded_load recorded_;
  size_t recorded_bytes_ = 0;
};

}  // namespace troupe
