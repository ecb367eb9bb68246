// Processes that join and drain under load, in virtual time: no request is lost, and no token changes.
#include <doctest/doctest.h>

#include <cstdlib>

#include "tests/simulation/rebalance/moving_experts.hpp"

namespace troupe::testing {

namespace {

constexpr uint16_t nodes_max = 6;

simulation_options elastic_options(const std::string& policy, uint64_t seed) {
  auto options = moving_options(4);
  options.seed = seed;
  options.settings.nodes_max = nodes_max;
  options.settings.rebalance.policy = policy;
  return options;
}

bool live(const simulated_cluster& cluster, uint16_t node) {
  const auto board = cluster.board();
  return node < board.nodes.size() && board.nodes[node].state == "live";
}

uint64_t seed_or(uint64_t otherwise) {
  const char* const given = std::getenv("TROUPE_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : otherwise;
}

// Joins and drains at random, often before the last one is through, while requests run.
void join_and_drain(uint32_t events, uint64_t seed) {
  MESSAGE("TROUPE_SEED=" << seed << " repeats this");
  std::mt19937_64 draw(seed);
  simulated_cluster cluster(t1_model(), elastic_options("incremental", seed));
  REQUIRE(cluster.start());
  drifting_load load{cluster, 6, 200};
  enum class place { there, leaving, free };
  std::vector<place> places(nodes_max, place::there);
  places[4] = places[5] = place::free;
  uint32_t joins = 0, drains = 0;
  while (joins + drains < events) {
    for (uint64_t i = draw() % 8; i < 8; ++i) {
      load.keep_up((joins + drains) / 4);
      cluster.run_for(milliseconds(5));
    }
    for (uint16_t node = 1; node < nodes_max; ++node)
      if (places[node] == place::leaving && cluster.released(node)) places[node] = place::free;
    const auto node = static_cast<uint16_t>(1 + draw() % (nodes_max - 1));
    if (places[node] == place::free) {
      cluster.join(node);
      places[node] = place::there;
      ++joins;
    } else if (places[node] == place::there && live(cluster, node) &&
               std::count(places.begin(), places.end(), place::there) > 2) {
      cluster.drain(node);
      places[node] = place::leaving;
      ++drains;
    }
  }
  REQUIRE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(60)));
  REQUIRE(cluster.run_until(
      [&] {
        for (uint16_t node = 1; node < nodes_max; ++node)
          if (places[node] == place::leaving && !cluster.released(node)) return false;
        return true;
      },
      seconds(30)));
  load.check_streams();
  check_at_rest(cluster);
  const auto board = cluster.board();
  MESSAGE(joins << " joins, " << drains << " drains, " << cluster.streams().size() << " requests, "
                << board.requests.resumed << " times one moved to another shard, " << board.rebalance.moves_done
                << " replicas moved, " << board.rebalance.moves_failed << " failed: " << board.rebalance.last_failure);
  CHECK(board.requests.resumed > 0);
  CHECK(board.nodes_lost == 0);
  CHECK(board.requests.failed == 0);
}

}  // namespace

TEST_CASE("a fifth process that joins under load receives experts and sequences") {
  simulated_cluster cluster(t1_model(), elastic_options("incremental", 1));
  REQUIRE(cluster.start());
  drifting_load load{cluster, 16, 200};
  load.keep_up(0);
  cluster.join(4);
  REQUIRE(cluster.run_until(
      [&] {
        load.keep_up(0);
        return live(cluster, 4) && cluster.replicas_at(4) >= moe_layers && cluster.board().nodes[4].counters.tokens > 0;
      },
      seconds(10)));
  CHECK(cluster.board().nodes[4].counters.rows_received > 0);
  REQUIRE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(60)));
  load.check_streams();
  check_at_rest(cluster);
}

TEST_CASE("a node that drains hands over its experts and its running sequences, and its process ends") {
  // Also without a policy, and with one that cannot place without the node.
  for (const std::string policy : {"none", "incremental", "broken"}) {
    CAPTURE(policy);
    auto options = elastic_options(policy == "broken" ? "none" : policy, 1);
    if (policy == "broken")
      options.policy = [](const placement_input&) { return result<placement_proposal>(error{errc::internal, "no"}); };
    simulated_cluster cluster(t1_model(), options);
    REQUIRE(cluster.start());
    drifting_load load{cluster, 16, 200};
    load.keep_up(0);
    cluster.run_for(milliseconds(5));
    cluster.drain(2);
    REQUIRE(cluster.run_until([&] { return cluster.released(2); }, seconds(10)));
    const auto board = cluster.board();
    CHECK(board.requests.resumed > 0);
    CHECK(board.nodes_lost == 0);
    CHECK(board.nodes[2].state == "waiting");
    for (const uint16_t node : board.placement->nodes) CHECK(node != 2);
    REQUIRE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(60)));
    load.check_streams();
    check_at_rest(cluster);
  }
}

TEST_CASE("the head's own node and the last one are not drained") {
  simulated_cluster cluster(t1_model(), elastic_options("none", 1));
  REQUIRE(cluster.start());
  cluster.drain(0);
  cluster.drain(9);
  cluster.run_for(milliseconds(200));
  for (uint16_t node = 0; node < 4; ++node) CHECK(live(cluster, node));
}

TEST_CASE("30 joins and drains under load: no request is lost, and no token changes") {
  join_and_drain(30, seed_or(1));
}

TEST_CASE("500 joins and drains under load: no request is lost, and no token changes" * doctest::test_suite("full")) {
  join_and_drain(500, seed_or(2));
}

}  // namespace troupe::testing
