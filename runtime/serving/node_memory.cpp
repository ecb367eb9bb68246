#include "runtime/serving/node_memory.hpp"

#include <algorithm>

namespace troupe {

node_memory size_node_memory(const serving_settings& settings, const model_config& config) {
  const uint64_t steps_per_node = uint64_t{settings.shards_per_node} * settings.schedule.micro_batches_max();
  const uint64_t steps = steps_per_node * settings.nodes_limit();
  const auto hidden = static_cast<uint32_t>(config.hidden_size);
  const auto k = static_cast<uint32_t>(config.num_experts_per_tok);
  const uint32_t pairs = settings.rows_max * k;
  const uint64_t copies = std::min(settings.nodes_limit(), k);  // a row goes to at most this many destinations
  const uint64_t slack = 4;
  const uint64_t smallest = 4U << 20U;  // many small buffers, one for each destination
  const uint64_t one_dispatch = payload_bytes(settings.dispatch, hidden, pairs, settings.rows_max);
  const uint64_t one_combine = payload_bytes(settings.combine, hidden, pairs, pairs);
  node_memory memory;
  memory.dispatch_bytes = slack * steps_per_node * copies * one_dispatch + smallest;
  memory.combine_bytes = slack * steps * one_combine + smallest;
  memory.received_dispatch_bytes = slack * steps * one_dispatch + smallest;
  memory.received_combine_bytes = slack * steps_per_node * one_combine + smallest;
  return memory;
}

}  // namespace troupe
