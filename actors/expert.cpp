#include "actors/expert.hpp"

namespace troupe {

expert_actor::behavior_type expert(expert_actor::stateful_pointer<expert_state> self, expert_environment environment) {
  self->state.environment = std::move(environment);
  return {
      [self](const expert_rows& rows) {
        auto& state = self->state;
        state.rows_served += rows.end - rows.begin;
        state.environment.compute->submit(expert_task{state.environment.weights.get(), rows.work,
                                                      state.environment.layer, state.environment.expert, rows.begin,
                                                      rows.end});
      },
  };
}

}  // namespace troupe
