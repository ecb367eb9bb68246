#include "apps/cluster/front.hpp"

namespace troupe {

front_actors spawn_front(caf::actor_system& system, api_server_environment api, coordinator_environment coordination) {
  front_actors front;
  front.board = std::make_shared<cluster_board>();
  front.prefill_balancer = system.spawn(prefill_balancer, &choose_prefill_shard);
  front.decode_balancer = system.spawn(decode_balancer, &stay_with_holder);
  const auto pointer = [](const auto& handle) { return caf::actor_cast<caf::strong_actor_ptr>(handle); };
  api.prefill_balancer = pointer(front.prefill_balancer);
  api.board = front.board;
  front.api_server =
      system.spawn([](api_server_actor::stateful_pointer<api_server_state> self,
                      api_server_environment environment) { return self->state.start(self, std::move(environment)); },
                   std::move(api));
  coordination.api_server = pointer(front.api_server);
  coordination.prefill_balancer = pointer(front.prefill_balancer);
  coordination.decode_balancer = pointer(front.decode_balancer);
  coordination.board = front.board;
  front.coordinator =
      system.spawn([](coordinator_actor::stateful_pointer<coordinator_state> self,
                      coordinator_environment environment) { return self->state.start(self, std::move(environment)); },
                   std::move(coordination));
  return front;
}

void end_front(front_actors& front) {
  const auto end = [](const auto& handle) { caf::anon_send_exit(handle, caf::exit_reason::kill); };
  end(front.coordinator);
  end(front.api_server);
  end(front.prefill_balancer);
  end(front.decode_balancer);
}

}  // namespace troupe
