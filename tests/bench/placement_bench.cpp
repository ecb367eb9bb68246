// Time to solve a placement: 58 layers of 256 experts into 288 slots, on one core.
//
// Bars: eplb 1 ms and incremental 5 ms, at 32 devices (4 nodes) and at 144 (18 nodes).
#include <benchmark/benchmark.h>

#include "runtime/placement/eplb.hpp"
#include "runtime/placement/random.hpp"

namespace {

using namespace troupe;

struct unit {
  explicit unit(uint32_t nodes, uint32_t slots) : topology(even_topology(nodes, 8, slots)) {
    load.layers = 58;
    load.experts = 256;
    seeded_random random(7);
    load.windows.resize(1);
    for (uint32_t i = 0; i < 58 * 256; ++i)
      load.windows.front().rows.push_back(static_cast<uint64_t>(1000 * std::exp(random.normal())) + 1);
    limits.expert_groups = 8;
  }
  placement_input input() const { return {load, topology, liveness, current.empty() ? nullptr : &current, limits}; }

  load_history load;
  placement_topology topology;
  placement_liveness liveness;
  placement_limits limits;
  expert_map current;
};

unit at(int64_t devices) { return devices == 32 ? unit(4, 9) : unit(18, 2); }

void eplb(benchmark::State& state) {
  const auto unit = at(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(place_eplb(unit.input()));
}
BENCHMARK(eplb)->ArgName("devices")->Arg(32)->Arg(144)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
