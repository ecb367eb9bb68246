#include "runtime/placement/plan_execution.hpp"

#include <doctest/doctest.h>

#include <set>

#include "runtime/placement/random.hpp"

namespace troupe {
namespace {

// One layer of `experts` experts; `nodes[e]` hold expert e.
placement_table table_of(const std::vector<std::vector<uint16_t>>& nodes) {
  placement_table table;
  table.layers = 1;
  table.experts = static_cast<uint32_t>(nodes.size());
  table.offsets.push_back(0);
  for (const auto& list : nodes) {
    table.nodes.insert(table.nodes.end(), list.begin(), list.end());
    table.offsets.push_back(static_cast<uint32_t>(table.nodes.size()));
  }
  return table;
}

const std::vector<serving_node> three{{0, 1, false}, {1, 1, false}, {2, 1, false}};

}  // namespace

TEST_CASE(
    "a replica is loaded, then named, and only then the old one is left out; it goes when all have acknowledged") {
  plan_execution execution;
  execution.see(1, table_of({{0}, {1}}), three);
  execution.acknowledged(1);
  CHECK(execution.pursue(table_of({{2}, {1}}), {2, 1}, {}) == 0);
  auto orders = execution.next();
  REQUIRE(orders.loads.size() == 1);
  CHECK(orders.loads[0].what == replica_place{0, 0, 2});
  CHECK(orders.loads[0].from == uint16_t{0});
  CHECK(!orders.publish);
  CHECK(execution.next().loads.empty());  // it is on its way
  execution.loaded({0, 0, 2});
  orders = execution.next();
  REQUIRE(orders.publish);
  CHECK(*orders.publish == table_of({{2}, {1}}));
  CHECK(!execution.next().publish);  // until the epoch is there
  execution.see(2, *orders.publish, three);
  CHECK(execution.next().drops.empty());
  CHECK(execution.replicas_at(0) == 1);  // it still answers those who have not heard
  execution.acknowledged(2);
  orders = execution.next();
  REQUIRE(orders.drops.size() == 1);
  CHECK(orders.drops[0] == replica_place{0, 0, 0});
  CHECK(!execution.idle());
  execution.dropped({0, 0, 0});
  CHECK(execution.idle());
  CHECK(execution.replicas_at(0) == 0);
}

TEST_CASE("an expert's old replicas stay until all of its new ones are ready") {
  plan_execution execution;
  execution.see(1, table_of({{0}}), three);
  execution.pursue(table_of({{1, 2}}), {2, 1}, {});
  CHECK(execution.next().loads.size() == 2);
  execution.loaded({0, 0, 1});
  auto orders = execution.next();
  REQUIRE(orders.publish);
  CHECK(*orders.publish == table_of({{0, 1}}));
  execution.see(2, *orders.publish, three);
  execution.loaded({0, 0, 2});
  orders = execution.next();
  REQUIRE(orders.publish);
  CHECK(*orders.publish == table_of({{1, 2}}));
}

TEST_CASE("a load that fails leaves its expert where it was, and the rest of the plan goes on") {
  plan_execution execution;
  execution.see(1, table_of({{0}, {1}}), three);
  execution.pursue(table_of({{1}, {2}}), {3, 1}, {});
  CHECK(execution.next().loads.size() == 2);
  execution.failed({0, 0, 1});
  CHECK(execution.moves_left() == 1);
  execution.loaded({0, 1, 2});
  const auto orders = execution.next();
  REQUIRE(orders.publish);
  CHECK(*orders.publish == table_of({{0}, {2}}));
  REQUIRE(orders.drops.size() == 1);  // what the node has of it
  CHECK(orders.drops[0] == replica_place{0, 0, 1});
  execution.dropped({0, 0, 1});
  execution.see(2, *orders.publish, three);
  execution.acknowledged(2);
  execution.dropped(execution.next().drops.at(0));
  CHECK(execution.idle());
}

TEST_CASE("another plan takes over half-way: what it does not want is dropped, what was leaving comes back") {
  plan_execution execution;
  execution.see(1, table_of({{0}, {1}}), three);
  execution.pursue(table_of({{2}, {2}}), {2, 2}, {});
  CHECK(execution.next().loads.size() == 2);
  execution.loaded({0, 0, 2});
  const auto first = execution.next();
  REQUIRE(first.publish);
  execution.see(2, *first.publish, three);  // expert 0 has moved; its old replica has not gone
  CHECK(execution.pursue(table_of({{0}, {1}}), {2, 2}, {}) == 1);
  execution.loaded({0, 1, 2});  // too late
  const auto second = execution.next();
  CHECK(second.loads.empty());  // expert 0 is still at node 0
  REQUIRE(second.drops.size() == 1);
  CHECK(second.drops[0] == replica_place{0, 1, 2});
  REQUIRE(second.publish);
  CHECK(*second.publish == table_of({{0}, {1}}));
}

TEST_CASE("full nodes exchange replicas within one replica beyond their slots") {
  plan_execution execution;
  execution.see(1, table_of({{0}, {1}}), std::vector<serving_node>{{0, 1, false}, {1, 1, false}});
  execution.pursue(table_of({{1}, {0}}), {2, 1}, {});
  const auto orders = execution.next();
  CHECK(orders.loads.size() == 2);
  CHECK(execution.replicas_at(0) == 2);
}

TEST_CASE("without room for any move the plan is given up rather than waited for") {
  plan_execution execution;
  execution.see(1, table_of({{0}, {1}}), std::vector<serving_node>{{0, 1, false}, {1, 1, false}});
  execution.pursue(table_of({{1}, {0}}), {1, 1}, {});
  const auto orders = execution.next();
  CHECK(orders.loads.empty());
  CHECK(!orders.publish);
  CHECK(orders.abandoned == 2);
  CHECK(execution.idle());
}

TEST_CASE("a node that dies takes its orders along, and its entries in the table stay for its return") {
  plan_execution execution;
  execution.see(1, table_of({{0}, {1}}), three);
  execution.pursue(table_of({{2}, {1}}), {2, 1}, {});
  CHECK(execution.next().loads.size() == 1);
  execution.see(2, table_of({{0}, {1}}), std::vector<serving_node>{{0, 1, false}, {1, 1, false}});
  execution.loaded({0, 0, 2});  // of the dead incarnation
  CHECK(!execution.next().publish);
  CHECK(execution.replicas_at(0) == 1);
  CHECK(execution.idle());  // what was to go there stays where it is, until another plan
  execution.see(3, table_of({{0}, {1}}), std::vector<serving_node>{{0, 1, false}, {1, 1, false}, {2, 2, false}});
  execution.pursue(table_of({{2}, {1}}), {2, 1}, {});
  CHECK(execution.next().loads.size() == 1);
}

TEST_CASE("random plans, failures and deaths never leave an expert without a replica nor a node too full, 200 seeds") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    seeded_random draw(seed);
    constexpr uint32_t nodes = 4, experts = 12, replicas_max = 8;
    std::vector<std::vector<uint16_t>> start;
    for (uint32_t e = 0; e < experts; ++e) start.push_back({static_cast<uint16_t>(e % nodes)});
    plan_execution execution;
    std::vector<serving_node> live;
    for (uint16_t node = 0; node < nodes; ++node) live.push_back({node, 1, false});
    auto table = table_of(start);
    uint64_t epoch = 1;
    execution.see(epoch, table, live);
    // What nodes really hold, and what is under way to them.
    std::set<replica_place> there;
    for (uint32_t e = 0; e < experts; ++e) there.insert({0, e, start[e][0]});
    std::vector<replica_place> loads, drops;
    std::optional<placement_table> publishing;
    const auto check = [&] {
      for (uint32_t e = 0; e < experts; ++e) {
        REQUIRE(!table.replicas(0, e).empty());
        for (const uint16_t node : table.replicas(0, e)) REQUIRE(there.contains({0, e, node}));
      }
      std::map<uint16_t, size_t> held;
      for (const auto& place : there) ++held[place.node];
      for (const auto& place : loads) ++held[place.node];
      for (const auto& [node, count] : held) REQUIRE(count <= replicas_max);
    };
    const auto take = [&] {
      auto orders = execution.next();
      for (const auto& order : orders.loads) {
        REQUIRE(!there.contains(order.what));
        if (order.from) REQUIRE(there.contains({order.what.layer, order.what.expert, *order.from}));
        loads.push_back(order.what);
      }
      for (const auto& place : orders.drops) drops.push_back(place);
      if (orders.publish) publishing = orders.publish;
    };
    const auto random_plan = [&] {
      std::vector<std::vector<uint16_t>> wanted(experts);
      std::map<uint16_t, uint32_t> held;
      for (auto& list : wanted)
        for (uint32_t i = 0, count = 1 + draw.below(2); i < count; ++i) {
          const auto node = static_cast<uint16_t>(draw.below(nodes));
          if (held[node] >= replicas_max - 2 || std::count(list.begin(), list.end(), node) > 0) continue;
          ++held[node];
          list.push_back(node);
        }
      for (auto& list : wanted)
        for (uint16_t node = 0; list.empty(); ++node)
          if (held[node] < replicas_max - 2) {
            ++held[node];
            list.push_back(node);
          }
      execution.pursue(table_of(wanted), {replicas_max, 1}, {});
      return table_of(wanted);
    };
    auto target = random_plan();
    const auto advance = [&](bool disturb) {
      take();
      check();
      const uint32_t what = draw.below(4);
      if (what == 0 && !loads.empty()) {
        const auto place = loads.back();
        loads.pop_back();
        if (disturb && draw.below(4) == 0) {
          execution.failed(place);
        } else {
          there.insert(place);
          execution.loaded(place);
        }
      } else if (what == 1 && !drops.empty()) {
        there.erase(drops.back());
        execution.dropped(drops.back());
        drops.pop_back();
      } else if (what == 2 && publishing) {
        table = *publishing;
        publishing.reset();
        execution.see(++epoch, table, live);
      } else if (what == 3) {
        execution.acknowledged(epoch);
      }
      take();
      check();
    };
    for (int i = 0; i < 300; ++i) {
      if (draw.below(60) == 0) target = random_plan();
      advance(true);
    }
    target = random_plan();
    for (int i = 0; i < 4000 && !execution.idle(); ++i) advance(false);
    REQUIRE(execution.idle());
    REQUIRE(there.size() == table.nodes.size());
  }
}

}  // namespace troupe
