#include "apps/cluster/front.hpp"

#include "runtime/placement/policy_registry.hpp"

namespace troupe {

result<placement_policy> make_live_policy(const rebalance_settings& settings) {
  if (settings.policy == "none") return placement_policy{};
  auto registry = shipped_policies();
  registry.programs.timeout_ms = settings.policy_timeout_ms;
  return registry.make(settings.policy);
}

front_actors spawn_front(caf::actor_system& system, api_server_environment api, coordinator_environment coordination,
                         placing_options placing) {
  front_actors front;
  front.board = std::make_shared<cluster_board>();
  auto prefill = make_prefill_choice(coordination.settings.prefill_balancer);
  auto decode = make_decode_choice(coordination.settings.decode_balancer);
  TROUPE_CHECK(prefill && decode, "settings that were validated name balancers that there are");
  front.prefill_balancer = system.spawn(prefill_balancer, *prefill, front.board);
  front.decode_balancer = system.spawn(decode_balancer, *decode, front.board);
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
  const auto& config = *coordination.config;
  expert_balancer_environment balancing;
  balancing.settings = coordination.settings;
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) balancing.moe_layers.push_back(config.is_moe(layer));
  balancing.experts = static_cast<uint32_t>(config.n_routed_experts);
  balancing.rows_per_token = static_cast<uint32_t>(config.num_experts_per_tok);
  balancing.policy = std::move(placing.policy);
  balancing.board = front.board;
  balancing.run_behind = std::move(placing.run_behind);
  front.expert_balancer = system.spawn(
      [](expert_balancer_actor::stateful_pointer<expert_balancer_state> self, expert_balancer_environment environment) {
        return self->state.start(self, std::move(environment));
      },
      std::move(balancing));
  coordination.expert_balancer = pointer(front.expert_balancer);
  front.coordinator =
      system.spawn([](coordinator_actor::stateful_pointer<coordinator_state> self,
                      coordinator_environment environment) { return self->state.start(self, std::move(environment)); },
                   std::move(coordination));
  return front;
}

void end_front(front_actors& front) {
  const auto end = [](const auto& handle) { caf::anon_send_exit(handle, caf::exit_reason::kill); };
  end(front.coordinator);
  end(front.expert_balancer);
  end(front.api_server);
  end(front.prefill_balancer);
  end(front.decode_balancer);
}

}  // namespace troupe
