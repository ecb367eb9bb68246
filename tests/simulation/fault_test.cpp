// One process of four crashes or is paused at a random moment: every stream completes, and equals the
// undisturbed run in every token and every bit of its log-probabilities.
#include <doctest/doctest.h>

#include <cstdlib>

#include "tests/simulation/simulation_fixtures.hpp"

namespace troupe::testing {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr uint32_t streams = 16;
constexpr uint32_t tokens = 20;

enum class disturbance { crash, crash_and_restart, pause, pause_and_resume };

simulation_options fault_options(uint64_t seed) {
  auto options = t1_options(4);
  options.seed = seed;
  options.settings.heartbeat_ms = 20;
  options.settings.verdict_ms = 100;
  options.settings.dispatch_deadline_ms = 50;
  return options;
}

// When the undisturbed run of `fault_options(1)` ends: faults fall into that time.
microseconds undisturbed_duration() {
  static const microseconds duration = [] {
    simulated_cluster cluster(t1_model(), fault_options(1));
    cluster.start();
    const auto begin = cluster.scheduler().time().now();
    for (uint32_t i = 0; i < streams; ++i) cluster.submit(mixed_request(i, tokens));
    cluster.run_until([&] { return cluster.all_ended(); }, seconds(60));
    return std::chrono::duration_cast<microseconds>(cluster.scheduler().time().now() - begin);
  }();
  return duration;
}

void run_disturbed(uint64_t seed) {
  std::mt19937_64 draw(seed);
  const auto victim = static_cast<uint16_t>(1 + draw() % 3);
  const auto kind = static_cast<disturbance>(draw() % 4);
  const auto moment = microseconds(draw() % static_cast<uint64_t>(undisturbed_duration().count() + 1));
  CAPTURE(seed);
  CAPTURE(victim);
  CAPTURE(static_cast<int>(kind));
  simulated_cluster cluster(t1_model(), fault_options(seed));
  REQUIRE(cluster.start());
  for (uint32_t i = 0; i < streams; ++i) cluster.submit(mixed_request(i, tokens));
  cluster.run_for(moment);
  switch (kind) {
    case disturbance::crash: cluster.crash(victim); break;
    case disturbance::crash_and_restart:
      cluster.crash(victim);
      cluster.run_for(microseconds(draw() % 50'000));
      cluster.restart(victim);
      break;
    case disturbance::pause: cluster.pause(victim); break;
    case disturbance::pause_and_resume:
      cluster.pause(victim);
      cluster.run_for(microseconds(draw() % 300'000));
      cluster.resume(victim);
      break;
  }
  REQUIRE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(60)));
  for (uint32_t i = 0; i < streams; ++i) {
    const auto& stream = *cluster.streams()[i];
    CAPTURE(i);
    REQUIRE(!stream.failure);
    REQUIRE(result_of(stream) == alone(i, tokens));
  }
}

void run_seeds(uint64_t first, uint64_t count) {
  if (const char* one = std::getenv("TROUPE_SEED")) {
    run_disturbed(std::strtoull(one, nullptr, 10));
    return;
  }
  MESSAGE("seeds " << first << " to " << first + count - 1 << "; one alone: TROUPE_SEED=n");
  for (uint64_t seed = first; seed < first + count; ++seed) run_disturbed(seed);
}

}  // namespace

TEST_CASE("any worker may crash or be paused at a random moment: streams equal the undisturbed run, 500 seeds") {
  run_seeds(1, 500);
}

TEST_CASE("any worker may crash or be paused at a random moment: streams equal the undisturbed run, 5000 seeds" *
          doctest::test_suite("full")) {
  run_seeds(501, 5000);
}

}  // namespace troupe::testing
