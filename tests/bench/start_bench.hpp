// Time from a start to the first token, beside the time to read the weights from the page cache and copy them once.
#pragma once

#include "apps/cluster/head_config.hpp"

namespace troupe {

// Alternates `runs` times between both, prints every pair and the medians, and how much of either's memory lay on
// huge pages. Returns the exit code.
int bench_start(const head_config& config, int runs);

}  // namespace troupe
