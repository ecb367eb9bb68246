#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "runtime/placement/eplb.hpp"
#include "runtime/placement/incremental.hpp"
#include "runtime/placement/policy_json.hpp"
#include "runtime/placement/policy_registry.hpp"
#include "runtime/placement/search.hpp"
#include "tests/runtime/placement/samples.hpp"

namespace troupe {
namespace {

using testing::made_load;
using testing::question;
using testing::random_question;

question unit(uint32_t nodes, uint32_t slots, const std::string& load) {
  question asked;
  asked.load = made_load(load);
  asked.topology = even_topology(nodes, 8, slots);
  asked.limits.expert_groups = 8;
  return asked;
}

const char* const computing[] = {"linear",        "round_robin", "random",          "eplb",
                                 "eplb_distinct", "incremental", "search:trials=20"};

}  // namespace

TEST_CASE("every policy's maps are valid on uneven topologies, dead devices and loads with zeros") {
  const auto registry = shipped_policies();
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    auto asked = random_question(seed);
    CAPTURE(seed);
    for (const char* name : computing) {
      CAPTURE(name);
      const auto policy = registry.make(name);
      REQUIRE(policy);
      asked.current = {};
      const auto first = place(*policy, asked.input());
      REQUIRE_MESSAGE(first, (first ? "" : first.failure().message));
      CHECK(first->after.balance_worst > 0);
      CHECK(first->after.balance_worst <= 1 + 1e-9);
      CHECK_FALSE(first->reason.empty());
      // Again from that map, after another device died.
      asked.current = first->map;
      auto later = asked;
      if (later.liveness.live.empty()) later.liveness.live.assign(later.topology.devices.size(), true);
      later.liveness.live[seed % later.liveness.live.size()] = false;
      if (!validate(later.input())) continue;
      const auto second = place(*policy, later.input());
      REQUIRE_MESSAGE(second, (second ? "" : second.failure().message));
    }
  }
}

TEST_CASE("the same input gives the same map") {
  const auto registry = shipped_policies();
  const auto asked = random_question(11);
  for (const char* name : computing)
    CHECK(place(*registry.make(name), asked.input())->map == place(*registry.make(name), asked.input())->map);
  CHECK_FALSE(place(*registry.make("random:seed=1"), asked.input())->map ==
              place(*registry.make("random:seed=2"), asked.input())->map);
}

TEST_CASE("eplb_distinct wastes no slot and is as balanced as eplb, nearly") {
  for (const bool large : {false, true}) {
    const auto asked = large ? unit(18, 2, "log_normal:windows=1") : unit(4, 9, "log_normal:windows=1");
    const auto published = place(place_eplb, asked.input());
    const auto distinct = place(place_eplb_distinct, asked.input());
    REQUIRE(published);
    REQUIRE(distinct);
    CHECK(wasted_slots(distinct->map) == 0);
    CHECK(distinct->map.devices.size() == published->map.devices.size());
    CHECK(distinct->after.balance_mean > 0.99 * published->after.balance_mean);
    if (!large) CHECK(wasted_slots(published->map) > 0);
  }
}

TEST_CASE("eplb is hierarchical where groups divide among nodes: a group's experts stay on one node") {
  const auto asked = unit(4, 9, "log_normal:windows=1");
  const auto plan = place(place_eplb, asked.input());
  REQUIRE(plan);
  for (uint32_t layer = 0; layer < 58; ++layer)
    for (uint32_t group = 0; group < 8; ++group) {
      const auto node = plan->map.replicas(layer, group * 32)[0] / 8;
      for (uint32_t expert = group * 32; expert < group * 32 + 32; ++expert)
        for (const uint16_t device : plan->map.replicas(layer, expert)) REQUIRE(device / 8 == node);
    }
}

TEST_CASE("incremental reaches 98 % of eplb's balance with at most a quarter of its bytes while loads drift") {
  for (const bool large : {false, true})
    for (const char* load : {"drifting:windows=8,memory=0.98", "drifting:windows=8,memory=0.95,seed=2"}) {
      const auto asked = large ? unit(18, 2, load) : unit(4, 9, load);
      CAPTURE(large);
      CAPTURE(std::string(load));
      double balance[2] = {0, 0};
      double bytes[2] = {0, 0};
      for (const int which : {0, 1}) {
        const placement_policy incremental = [](const placement_input& input) { return place_incremental(input, {}); };
        expert_map current;
        for (size_t window = 0; window + 1 < asked.load.windows.size(); ++window) {
          auto now = asked;
          now.load = windows_of(asked.load, window, window + 1);
          now.current = current;
          const auto plan = place(which == 0 ? placement_policy(place_eplb) : incremental, now.input());
          REQUIRE(plan);
          current = plan->map;
          if (window == 0) continue;  // both build the same map then
          bytes[which] += static_cast<double>(plan->move_bytes);
          balance[which] += objective_of(current, expected_rows(windows_of(asked.load, window + 1, window + 2), 0),
                                         usable_slots(now.input()))
                                .balance_mean;
        }
      }
      MESSAGE("balance " << balance[1] / balance[0] << ", bytes " << bytes[1] / bytes[0] << " of eplb's");
      CHECK(balance[1] >= 0.98 * balance[0]);
      CHECK(bytes[1] <= 0.25 * bytes[0]);
    }
}

TEST_CASE("incremental stays within its limit on bytes and takes what gains most") {
  auto asked = unit(4, 9, "drifting:windows=2");
  auto first = asked;
  first.load = windows_of(asked.load, 0, 1);
  asked.current = place(place_eplb, first.input())->map;
  const placement_policy incremental = [](const placement_input& input) { return place_incremental(input, {}); };
  double balance_before = 0;
  for (const uint64_t replicas : {0, 10, 100, 400, 100'000}) {
    CAPTURE(replicas);
    asked.limits.move_bytes_max = replicas * asked.limits.expert_bytes;
    const auto plan = place(incremental, asked.input());
    REQUIRE(plan);
    CHECK(plan->move_bytes <= asked.limits.move_bytes_max);
    CHECK(plan->after.balance_mean >= balance_before - 0.005);
    balance_before = plan->after.balance_mean;
    if (replicas == 0) CHECK(plan->moves.empty());
  }
}

TEST_CASE("search beats eplb at 144 devices and at 32, as far as the slots allow") {
  for (const bool large : {false, true}) {
    const auto asked = large ? unit(18, 2, "log_normal:windows=1,sigma=1.0") : unit(4, 9, "log_normal:windows=1");
    const auto published = place(place_eplb, asked.input());
    const auto found = place(
        [](const placement_input& input) {
          return place_by_search(input, {200, 1});
        },
        asked.input());
    REQUIRE(published);
    REQUIRE(found);
    const auto rows = expected_rows(asked.load, 0);
    const auto slots = usable_slots(asked.input());
    double bound = 0;
    for (uint32_t layer = 0; layer < 58; ++layer)
      bound += balance_bound(std::span(rows).subspan(layer * 256, 256), slots, row_shares::even) / 58;
    MESSAGE("eplb " << published->after.balance_mean << ", search " << found->after.balance_mean << ", bound "
                    << bound);
    CHECK(found->after.balance_mean > published->after.balance_mean);
    CHECK(found->after.balance_mean <= bound + 1e-6);
    CHECK(found->after.balance_mean > 0.99 * bound);
  }
}

TEST_CASE("a static map is read from a file, and refused when it is of another shape") {
  const auto asked = random_question(5);
  const auto made = place(place_eplb, asked.input());
  REQUIRE(made);
  const auto path =
      (std::filesystem::temp_directory_path() / ("troupe_map_" + std::to_string(getpid()) + ".json")).string();
  std::ofstream(path) << to_json_line(made->map);
  const auto registry = shipped_policies();
  const auto policy = registry.make("static:file=" + path);
  REQUIRE(policy);
  CHECK(place(*policy, asked.input())->map == made->map);
  const auto other = random_question(6);
  CHECK_FALSE(place(*policy, other.input()));
  std::filesystem::remove(path);
  CHECK(registry.make("static:file=" + path).failure().code == errc::not_found);
  CHECK(registry.make("static").failure().message.find("static:file=MAP.json") != std::string::npos);
}

TEST_CASE("an unknown policy or setting is refused with the nearest name or those that there are") {
  const auto registry = shipped_policies();
  CHECK(registry.make("eplp").failure().message.find("did you mean 'eplb'") != std::string::npos);
  CHECK(registry.make("search:tries=1").failure().message.find("trials, seed") != std::string::npos);
  CHECK(registry.make("search:trials=-1").failure().message.find("whole number") != std::string::npos);
  CHECK(registry.make("random:seed").failure().message.find("key and value") != std::string::npos);
  CHECK(registry.make("program: ").failure().message.find("needs a command") != std::string::npos);
}

TEST_CASE("a registered function is a policy like the others") {
  auto registry = shipped_policies();
  registry.add({"mine", "the last one",
                [](settings_text&) -> result<placement_policy> { return placement_policy(place_eplb_distinct); }});
  const auto asked = random_question(3);
  REQUIRE(registry.make("mine"));
  CHECK(place(*registry.make("mine"), asked.input())->map == place(place_eplb_distinct, asked.input())->map);
}

}  // namespace troupe
