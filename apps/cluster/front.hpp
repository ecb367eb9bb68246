// The actors of the head: API server, balancers and coordinator, spawned and introduced to each other.
#pragma once

#include <memory>

#include "actors/api_server.hpp"
#include "actors/balancers.hpp"
#include "actors/coordinator.hpp"
#include "actors/expert_balancer.hpp"

namespace troupe {

struct front_actors {
  api_server_actor api_server;
  prefill_balancer_actor prefill_balancer;
  decode_balancer_actor decode_balancer;
  expert_balancer_actor expert_balancer;
  coordinator_actor coordinator;
  std::shared_ptr<cluster_board> board;
};

// How the expert balancer asks its policy, and which; the rest of its environment follows from the coordinator's.
struct placing_options {
  placement_policy policy;  // empty: experts move only when a node drains
  std::function<void(std::function<void()>)> run_behind;
};

// The policy that the settings name, or an empty one. Fails: as `policy_registry::make`.
result<placement_policy> make_live_policy(const rebalance_settings& settings);

// Fills in the handles that the environments leave open. `system` outlives the actors.
front_actors spawn_front(caf::actor_system& system, api_server_environment api, coordinator_environment coordination,
                         placing_options placing);

// Ends them; their mailboxes are dropped.
void end_front(front_actors& front);

}  // namespace troupe
