// The actors of the head: API server, balancers and coordinator, spawned and introduced to each other.
#pragma once

#include <memory>

#include "actors/api_server.hpp"
#include "actors/balancers.hpp"
#include "actors/coordinator.hpp"

namespace troupe {

struct front_actors {
  api_server_actor api_server;
  prefill_balancer_actor prefill_balancer;
  decode_balancer_actor decode_balancer;
  coordinator_actor coordinator;
  std::shared_ptr<cluster_board> board;
};

// Fills in the handles that the two environments leave open. `system` outlives the actors.
front_actors spawn_front(caf::actor_system& system, api_server_environment api, coordinator_environment coordination);

// Ends them; their mailboxes are dropped.
void end_front(front_actors& front);

}  // namespace troupe
