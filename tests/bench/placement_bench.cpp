// Time to solve a placement: 58 layers of 256 experts into 288 slots, on one core.
//
// Bars: eplb 1 ms and incremental 5 ms, at 32 devices (4 nodes) and at 144 (18 nodes).
#include <benchmark/benchmark.h>

#include "runtime/placement/eplb.hpp"
#include "runtime/placement/incremental.hpp"
#include "runtime/placement/load_generators.hpp"

namespace {

using namespace troupe;

// A load that drifts as `troupe place` makes it, eight windows long; the map at the start is eplb's of the first.
struct unit {
  unit(uint32_t nodes, uint32_t slots) : topology(even_topology(nodes, 8, slots)) {
    generator_settings settings;
    settings.shape = load_shape::drifting;
    settings.memory = 0.98;
    settings.windows = 8;
    load = *generate_load(settings);
    limits.expert_groups = 8;
    for (size_t window = 0; window < load.windows.size(); ++window) {
      seen.push_back(windows_of(load, window, window + 1));
      maps.push_back(place_eplb({seen.back(), topology, liveness, nullptr, limits})->map);
    }
  }
  placement_input input(size_t window, const expert_map* current) const {
    return {seen[window], topology, liveness, current, limits};
  }

  load_history load;
  placement_topology topology;
  placement_liveness liveness;
  placement_limits limits;
  std::vector<load_history> seen;
  std::vector<expert_map> maps;
};

unit at(int64_t devices) { return devices == 32 ? unit(4, 9) : unit(18, 2); }

void eplb(benchmark::State& state) {
  const auto unit = at(state.range(0));
  size_t window = 0;
  for (auto _ : state) benchmark::DoNotOptimize(place_eplb(unit.input(window++ % 8, nullptr)));
}
BENCHMARK(eplb)->ArgName("devices")->Arg(32)->Arg(144)->Unit(benchmark::kMillisecond);

// From the map that it made of the window before, as it does in service.
void incremental(benchmark::State& state) {
  auto unit = at(state.range(0));
  std::vector<expert_map> before = {unit.maps.front()};
  for (size_t window = 1; window < 8; ++window)
    before.push_back(place_incremental(unit.input(window, &before.back()), {})->map);
  size_t window = 0;
  for (auto _ : state) {
    window = window % 7 + 1;
    benchmark::DoNotOptimize(place_incremental(unit.input(window, &before[window - 1]), {}));
  }
}
BENCHMARK(incremental)->ArgName("devices")->Arg(32)->Arg(144)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
