// expert: one replica of one routed expert of one layer.
//
// Holds the three weight matrices and counts what it served. It hands its rows of a dispatch to the
// device, which gathers them with those of other shards; the output goes straight to the dispatch's
// answer. Its products are pure functions of its input, so rows may be asked of any replica, twice.
#pragma once

#include "actors/messages.hpp"
#include "runtime/model/weights.hpp"

namespace troupe {

using expert_actor = caf::typed_actor<caf::reacts_to<expert_rows>>;

struct expert_environment {
  uint32_t layer = 0;
  uint32_t expert = 0;
  std::shared_ptr<const expert_weights> weights;
  std::shared_ptr<device> compute;
};

struct expert_state {
  static constexpr const char* name = "expert";

  expert_environment environment;
  uint64_t rows_served = 0;
};

expert_actor::behavior_type expert(expert_actor::stateful_pointer<expert_state> self, expert_environment environment);

}  // namespace troupe
