#include "runtime/placement/policy.hpp"

#include <doctest/doctest.h>

#include <set>

#include "tests/runtime/placement/samples.hpp"

namespace troupe {
namespace {

using testing::question;

// 2 layers of 4 experts on 2 nodes of 2 devices with 2 slots: expert e on device e / 2, and on the device after it
// for experts 0 to 3 of what slots are left.
question small() {
  question asked;
  asked.load = even_load(2, 4);
  asked.topology = even_topology(2, 2, 2);
  asked.limits.expert_bytes = 10;
  return asked;
}

expert_map map_of(uint32_t layers, uint32_t experts, const std::vector<std::vector<uint16_t>>& replicas) {
  expert_map map{layers, experts, {0}, {}};
  for (const auto& devices : replicas) {
    map.devices.insert(map.devices.end(), devices.begin(), devices.end());
    map.offsets.push_back(static_cast<uint32_t>(map.devices.size()));
  }
  return map;
}

placement_policy always(expert_map map) {
  return [map = std::move(map)](const placement_input&) -> result<placement_proposal> {
    return placement_proposal{map, "always the same"};
  };
}

std::string why_refused(const question& asked, expert_map map) {
  const auto plan = place(always(std::move(map)), asked.input());
  return plan ? "it was not" : plan.failure().message;
}

bool says(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a plan is refused with the layer and the expert that are wrong") {
  const auto asked = small();
  const std::vector<std::vector<uint16_t>> good = {{0}, {1}, {2}, {3}, {0}, {1}, {2}, {3}};
  REQUIRE(place(always(map_of(2, 4, good)), asked.input()));
  SUBCASE("an expert without a replica") {
    auto bad = good;
    bad[6].clear();
    CHECK(says(why_refused(asked, map_of(2, 4, bad)), "layer 1, expert 2 has no replica"));
  }
  SUBCASE("a device that does not exist") {
    auto bad = good;
    bad[1] = {4};
    CHECK(says(why_refused(asked, map_of(2, 4, bad)), "layer 0, expert 1 is on device 4, which does not exist"));
  }
  SUBCASE("more replicas than slots") {
    auto bad = good;
    bad[5] = {0};
    bad[6] = {0};
    CHECK(says(why_refused(asked, map_of(2, 4, bad)), "layer 1, expert 2 exceeds the 2 slots of device 0"));
  }
  SUBCASE("a dead device") {
    auto dead = asked;
    dead.liveness.live = {true, true, true, false};
    CHECK(says(why_refused(dead, map_of(2, 4, good)), "layer 0, expert 3 is on device 3, which is dead"));
  }
  SUBCASE("a device's memory") {
    auto limited = asked;
    limited.topology.devices[0].memory_bytes = 39;
    limited.topology.devices[0].slots = 2;
    auto bad = good;
    bad[1] = {0, 1};
    bad[5] = {0, 1};
    CHECK(says(why_refused(limited, map_of(2, 4, bad)), "layer 1, expert 1 exceeds the memory of device 0 (39 bytes)"));
  }
  SUBCASE("a node's slots") {
    auto limited = asked;
    limited.topology.nodes[0].slots = 2;
    auto bad = good;
    bad[2] = {0, 2};
    CHECK(says(why_refused(limited, map_of(2, 4, bad)), "layer 0, expert 2 exceeds the 2 slots of node 0"));
  }
  SUBCASE("a node's memory") {
    auto limited = asked;
    limited.topology.nodes[1].memory_bytes = 30;
    CHECK(says(why_refused(limited, map_of(2, 4, good)), "layer 1, expert 3 exceeds the memory of node 1"));
  }
  SUBCASE("a map of another shape") {
    CHECK(says(why_refused(asked, map_of(1, 4, {{0}, {1}, {2}, {3}})), "2 layers and 4 experts"));
    auto broken = map_of(2, 4, good);
    broken.offsets[3] = 7;
    CHECK(says(why_refused(asked, broken), "one entry for each"));
  }
}

TEST_CASE("two replicas of an expert on one device are legal and counted as a wasted slot") {
  const auto asked = small();
  const auto map = map_of(2, 4, {{0, 0}, {1}, {2}, {3}, {0}, {1, 1}, {2, 3}, {3}});
  REQUIRE(place(always(map), asked.input()));
  CHECK(wasted_slots(map) == 2);
}

TEST_CASE("moves are differences of device sets, loads before drops, each with a source that is live and near") {
  auto asked = small();
  asked.current = map_of(2, 4, {{0, 2}, {1}, {2}, {3}, {0}, {1}, {2, 2}, {3}});
  SUBCASE("the same sets in another order cost nothing") {
    const auto plan = place(always(map_of(2, 4, {{2, 0}, {1}, {2}, {3}, {0}, {1}, {2}, {3}})), asked.input());
    REQUIRE(plan);
    CHECK(plan->moves.empty());
    CHECK(plan->move_bytes == 0);
  }
  SUBCASE("a moved replica is loaded from its own node where it can be") {
    const auto plan = place(always(map_of(2, 4, {{0, 3}, {1}, {2}, {3}, {0}, {1}, {1}, {3}})), asked.input());
    REQUIRE(plan);
    REQUIRE(plan->moves.size() == 2);
    REQUIRE(plan->drops.size() == 2);
    CHECK(plan->move_bytes == 20);
    for (const auto& move : plan->moves) {
      CHECK(move.from == 2);  // expert 0 is on devices 0 and 2, and 3 is on the node of 2; expert 2 is on 2 alone
      CHECK(move.to == (move.layer == 0 ? 3 : 1));
    }
    CHECK(plan->staging_replicas_max == 0);
  }
  SUBCASE("what only a dead device has comes from the checkpoint") {
    asked.liveness.live = {true, true, true, false};
    const auto plan = place(always(map_of(2, 4, {{0, 2}, {1}, {2}, {0}, {0}, {1}, {2}, {1}})), asked.input());
    REQUIRE(plan);
    REQUIRE(plan->moves.size() == 2);
    CHECK(plan->moves[0].from == expert_move::from_checkpoint);
    CHECK(plan->drops.empty());
  }
  SUBCASE("a full device needs room for what it loads before it drops") {
    asked.current = map_of(2, 4, {{0}, {0}, {1}, {1}, {0}, {1}, {2}, {3}});
    const auto plan = place(always(map_of(2, 4, {{1}, {1}, {0}, {0}, {0}, {1}, {2}, {3}})), asked.input());
    REQUIRE(plan);
    CHECK(plan->staging_replicas_max == 2);
  }
}

TEST_CASE("a plan says the objective before and after, and layers that gain most move first") {
  auto asked = small();
  asked.load.windows[0].rows = {6, 2, 2, 2, 8, 1, 1, 2};
  asked.current = map_of(2, 4, {{0}, {0}, {1}, {1}, {0}, {0}, {0}, {0}});
  asked.topology = even_topology(1, 2, 4);
  const auto plan = place(always(map_of(2, 4, {{0}, {1}, {1}, {1}, {0, 1}, {0}, {1}, {1}})), asked.input());
  REQUIRE(plan);
  CHECK(plan->before.balance_mean == doctest::Approx((6.0 / 8 + 6.0 / 12) / 2));
  CHECK(plan->before.worst_layer == 1);
  CHECK(plan->after.balance_mean == doctest::Approx((1.0 + 6.0 / 7) / 2));
  CHECK(plan->moves.front().layer == 1);
}

TEST_CASE("an input that contradicts itself is refused with a sentence") {
  auto asked = small();
  const auto refused = [&] {
    const auto plan = place(always({}), asked.input());
    return plan ? std::string("it was not") : plan.failure().message;
  };
  SUBCASE("too few slots") {
    asked.topology = even_topology(1, 3, 1);
    CHECK(says(refused(), "have 3 slots a layer, fewer than the 4 experts"));
  }
  SUBCASE("more slots than anything is made for") {
    asked.topology = even_topology(2, 8, 60'000);
    CHECK(says(refused(), "at most 65534 are dealt with"));
  }
  SUBCASE("a window of another shape") {
    asked.load.windows[0].rows.pop_back();
    CHECK(says(refused(), "window 0 of the load"));
  }
  SUBCASE("a device on a node that does not exist") {
    asked.topology.devices[1].node = 7;
    CHECK(says(refused(), "device 1 is on node 7"));
  }
  SUBCASE("liveness of other devices") {
    asked.liveness.live = {true};
    CHECK(says(refused(), "liveness has 1 entries for 4 devices"));
  }
  SUBCASE("a current map that names a device that does not exist") {
    asked.current = map_of(2, 4, {{0}, {1}, {2}, {3}, {0}, {1}, {2}, {9}});
    CHECK(says(refused(), "the current map names device 9"));
  }
}

TEST_CASE("slots follow memory, liveness and what a node allows") {
  auto asked = small();
  asked.topology.devices[0].memory_bytes = 25;  // one replica of 10 bytes in each of 2 layers
  asked.liveness.live = {true, true, false, true};
  CHECK(usable_slots(asked.input()) == std::vector<uint32_t>{1, 2, 0, 2});
  asked.topology.nodes[0].slots = 2;
  CHECK(usable_slots(asked.input()) == std::vector<uint32_t>{1, 1, 0, 2});
  asked.topology.nodes[1].memory_bytes = 39;
  CHECK(usable_slots(asked.input()) == std::vector<uint32_t>{1, 1, 0, 1});
}

TEST_CASE("a node's limit leaves its devices as equal as they can be") {
  auto asked = small();
  asked.topology = even_topology(1, 4, 9);
  asked.topology.devices[1].slots = 2;
  asked.topology.nodes[0].slots = 18;
  CHECK(usable_slots(asked.input()) == std::vector<uint32_t>{6, 2, 5, 5});
}

TEST_CASE("an older window counts as much less as the decay says") {
  load_history load{1, 2, 0, {}};
  load.windows = {{{100, 0}, {}, {}}, {{0, 40}, {}, {}}};
  CHECK(expected_rows(load, 0) == std::vector<double>{0, 40});
  CHECK(expected_rows(load, 0.5) == std::vector<double>{50, 40});
  CHECK(expected_rows({1, 2, 0, {}}, 0.5) == std::vector<double>{1, 1});
}

}  // namespace troupe
