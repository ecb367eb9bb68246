// How much memory a node's data plane takes, computed once from the worst case.
//
// Every micro-batch that can exist has room for its dispatches and for their combines before it starts,
// so no dispatch ever waits for space that only its own answer would free. That is how space for the
// combine is reserved before a dispatch goes out: by construction, not by bookkeeping.
#pragma once

#include <cstdint>

#include "runtime/model/config.hpp"
#include "runtime/serving/settings.hpp"

namespace troupe {

struct node_memory {
  uint64_t dispatch_bytes = 0;  // built by this node's shards
  uint64_t combine_bytes = 0;   // built by this node's expert host
  uint64_t received_dispatch_bytes = 0;
  uint64_t received_combine_bytes = 0;
};

// Pure. Buffers come in powers of two and a dispatch may be sent twice, hence the factor of four.
node_memory size_node_memory(const serving_settings& settings, const model_config& config);

}  // namespace troupe
