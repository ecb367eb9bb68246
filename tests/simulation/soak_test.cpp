// Long runs in virtual time over links that break: nothing is lost, and nothing is left behind.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>

#include "tests/simulation/simulation_fixtures.hpp"

namespace troupe::testing {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

// Resident memory of this process, MiB.
double resident_mib() {
  std::ifstream stream("/proc/self/statm");
  uint64_t all = 0, resident = 0;
  stream >> all >> resident;
  return static_cast<double>(resident) * 4096 / (1U << 20U);
}

// Keeps 16 streams running on four nodes while random connections are cut, until the shards have run
// `steps` steps together.
void soak(uint64_t steps, uint64_t seed, uint32_t redundant_replicas) {
  constexpr uint32_t streams = 16;
  constexpr uint32_t tokens = 200;
  MESSAGE("TROUPE_SEED=" << seed << " repeats this");
  std::mt19937_64 draw(seed);
  auto options = t1_options(4);
  options.seed = seed;
  options.settings.redundant_replicas = redundant_replicas;
  options.settings.dispatch_deadline_ms = 50;
  options.settings.schedule = *find_schedule("auto", ".");
  simulated_cluster cluster(t1_model(), options);
  REQUIRE(cluster.start());
  uint64_t cuts = 0, ended = 0;
  double resident_early = 0;
  const auto counter = [&](uint64_t node_counters::*field) {
    uint64_t sum = 0;
    for (const auto& node : cluster.board().nodes) sum += node.counters.*field;
    return sum;
  };
  std::vector<size_t> running;
  size_t submitted = 0;
  for (uint64_t done = 0; done < steps || !running.empty(); done = counter(&node_counters::steps)) {
    for (size_t i = 0; i < running.size();) {
      const size_t stream = running[i];
      if (!cluster.streams()[stream]->ended) {
        ++i;
        continue;
      }
      REQUIRE(!cluster.streams()[stream]->failure);
      REQUIRE(result_of(*cluster.streams()[stream]) == alone(static_cast<uint32_t>(stream % streams), tokens));
      ++ended;
      running[i] = running.back();
      running.pop_back();
    }
    while (running.size() < streams && done < steps) {
      running.push_back(submitted);
      cluster.submit(mixed_request(static_cast<uint32_t>(submitted++ % streams), tokens));
    }
    cluster.run_for(microseconds(100 + draw() % 1'000));
    const auto a = static_cast<uint16_t>(draw() % 4);
    const auto b = static_cast<uint16_t>((a + 1 + draw() % 3) % 4);
    cluster.network().cut(a, b);
    ++cuts;
    if (resident_early == 0 && done > steps / 4) resident_early = resident_mib();
  }
  cluster.run_for(milliseconds(500));
  const double grown = resident_mib() - resident_early;
  MESSAGE(counter(&node_counters::steps) << " steps, " << ended << " streams, " << cuts << " cuts, "
                                         << counter(&node_counters::dispatches_resent)
                                         << " dispatches resent; memory grew by " << grown
                                         << " MiB in the last three quarters");
  CHECK(counter(&node_counters::dispatches_resent) > 0);
  CHECK(cluster.buffers_in_use() == 0);
  CHECK(counter(&node_counters::sequences) == 0);
  CHECK(counter(&node_counters::kv_blocks_free) == counter(&node_counters::kv_blocks));
  // What the test itself keeps of each stream is about 2 KiB.
  CHECK(grown < 16.0 + static_cast<double>(ended) * 4 / 1024);
}

uint64_t seed_or(uint64_t otherwise) {
  const char* const given = std::getenv("TROUPE_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : otherwise;
}

}  // namespace

TEST_CASE("10000 steps over links that break: streams equal the undisturbed run, and nothing is left behind") {
  for (const uint32_t redundant_replicas : {0U, 1U}) {
    CAPTURE(redundant_replicas);  // without one the same node is asked again
    soak(10'000, seed_or(1), redundant_replicas);
  }
}

TEST_CASE("200000 steps over links that break: streams equal the undisturbed run, and nothing is left behind" *
          doctest::test_suite("full")) {
  soak(200'000, seed_or(2), 1);
}

}  // namespace troupe::testing
