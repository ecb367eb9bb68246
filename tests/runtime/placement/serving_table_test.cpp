#include <doctest/doctest.h>

#include "runtime/placement/placement.hpp"

namespace troupe {
namespace {

placement_request question(uint32_t nodes, uint32_t experts, uint32_t redundant) {
  placement_request request;
  request.moe_layers = {false, true, true};
  request.experts = experts;
  request.redundant_replicas = redundant;
  for (uint32_t node = 0; node < nodes; ++node) request.nodes.push_back({static_cast<uint16_t>(node), 0, true});
  return request;
}

}  // namespace

TEST_CASE("linear gives every expert its replicas on different nodes, in equal shares") {
  const auto request = question(4, 32, 1);
  const auto plan = place_linear(request);
  REQUIRE(plan);
  REQUIRE(validate(plan->table, request));
  std::vector<int> held(4);
  for (uint32_t expert = 0; expert < 32; ++expert) {
    const auto replicas = plan->table.replicas(1, expert);
    REQUIRE(replicas.size() == 2);
    CHECK(replicas[0] == expert / 8);
    CHECK(replicas[1] == (expert / 8 + 1) % 4);
    for (const uint16_t node : replicas) ++held[node];
    CHECK(plan->table.replicas(0, expert).empty());
  }
  CHECK(held == std::vector<int>{16, 16, 16, 16});
}

TEST_CASE("linear never asks for more replicas than there are nodes") {
  const auto plan = place_linear(question(2, 16, 5));
  REQUIRE(plan);
  CHECK(plan->table.replicas(2, 3).size() == 2);
}

TEST_CASE("a placement is refused with the layer and expert that is wrong") {
  const auto request = question(2, 4, 0);
  const auto good = place_linear(request);
  REQUIRE(good);
  SUBCASE("an expert without a replica") {
    auto table = good->table;
    table.nodes.erase(table.nodes.begin());
    for (size_t i = 5; i < table.offsets.size(); ++i) --table.offsets[i];
    const auto refused = validate(table, request);
    REQUIRE(!refused);
    CHECK(refused.failure().message.find("layer 1, expert 0 has no replica") != std::string::npos);
  }
  SUBCASE("a node that does not exist") {
    auto table = good->table;
    table.nodes[2] = 9;
    const auto refused = validate(table, request);
    REQUIRE(!refused);
    CHECK(refused.failure().message.find("layer 1, expert 2 is on node 9") != std::string::npos);
  }
  SUBCASE("more replicas than slots") {
    auto limited = request;
    limited.nodes[0].slots = 1;
    const auto refused = validate(good->table, limited);
    REQUIRE(!refused);
    CHECK(refused.failure().message.find("exceeds the 1 slots of node 0") != std::string::npos);
  }
  SUBCASE("a table of another shape") {
    auto table = good->table;
    table.offsets.pop_back();
    CHECK(!validate(table, request));
  }
}

TEST_CASE("an unknown policy is refused with the names of those that exist") {
  const auto policy = find_placement_policy("liner");
  REQUIRE(!policy);
  CHECK(policy.failure().message.find("linear") != std::string::npos);
}

TEST_CASE("policies of the registry serve too: every expert has its replicas on different nodes") {
  for (const char* name : {"round_robin", "random:seed=3", "eplb_distinct"}) {
    CAPTURE(name);
    const auto policy = find_placement_policy(name);
    REQUIRE(policy);
    const auto request = question(4, 32, 1);
    const auto answer = (*policy)(request);
    REQUIRE_MESSAGE(answer, (answer ? "" : answer.failure().message));
    REQUIRE(validate(answer->table, request));
    for (uint32_t expert = 0; expert < 32; ++expert) {
      CHECK(answer->table.replicas(0, expert).empty());
      CHECK(answer->table.replicas(1, expert).size() == 2);
    }
  }
  CHECK(find_placement_policy("program:true").failure().code == errc::unsupported);
}

}  // namespace troupe
