// How fast a run could have been at best, from the run's own stages and transfers.
//
// No schedule can beat the busiest device or core, the busiest directed link, or the longest chain of
// stages and transfers that a micro-batch has to wait for. The bound is the largest of them, for the
// stages as they were split: what splitting itself costs (experts' weights read once for each micro-batch)
// is in the stages, and told by `passes_per_batch`. Pure.
#pragma once

#include <cstdint>

namespace troupe {

// Of one node, over one span of time; ns.
struct run_times {
  uint64_t active_ns = 0;  // there was work
  uint64_t device_ns = 0;  // the device computed
  uint64_t core_ns = 0;    // CPU time for each compute thread's core, wire and actors included
  uint64_t link_ns = 0;    // the busiest outgoing link was occupied; 0 where bandwidth is not known
  uint64_t chain_ns = 0;   // the longest chain of a micro-batch

  uint64_t bound_ns() const;
  const char* bound_by() const;  // "device", "core", "link", "chain"
  // Bound over active time, at most 1 but for rounding; 0 without work.
  double efficiency() const;
};

// Differences of cumulative times: `later` minus `earlier`.
run_times between(const run_times& earlier, const run_times& later);

// The largest of each, over nodes that work together.
run_times slowest(const run_times& a, const run_times& b);

}  // namespace troupe
