// What goes wrong while experts move, in virtual time: each thing has a sentence, and no stream notices.
#include <doctest/doctest.h>

#include <stdexcept>

#include "tests/simulation/rebalance/moving_experts.hpp"

namespace troupe::testing {

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

expert_map everything_on(const placement_input& input, uint16_t device) {
  expert_map map{input.load.layers, input.load.experts, {0}, {}};
  for (uint32_t i = 0; i < map.layers * map.experts; ++i) {
    map.devices.push_back(device);
    map.offsets.push_back(i + 1);
  }
  return map;
}

// Serves a load for a third of a second, and ends at rest with equal streams.
board_snapshot serve(simulated_cluster& cluster) {
  REQUIRE(cluster.start());
  drifting_load load{cluster, 8};
  for (uint32_t i = 0; i < 35; ++i) {
    load.keep_up(i / 10);
    cluster.run_for(milliseconds(10));
  }
  REQUIRE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(60)));
  load.check_streams();
  return cluster.board();
}

}  // namespace

TEST_CASE("a policy's bad answer is refused with a sentence, the placement stays, and serving does not notice") {
  using answer = result<placement_proposal>;
  struct bad_policy {
    const char* what;
    placement_policy policy;
    const char* sentence;
  };
  const bad_policy policies[] = {
      {"fails",
       [](const placement_input&) {
         return answer(error{errc::internal, "out of ideas"});
       },
       "out of ideas"},
      {"throws", [](const placement_input&) -> answer { throw std::runtime_error("oh"); }, "threw an exception: oh"},
      {"empty", [](const placement_input&) { return answer(placement_proposal{}); }, "does not have one entry"},
      {"unknown device",
       [](const placement_input& input) {
         return answer(placement_proposal{everything_on(input, 77), ""});
       },
       "layer 0, expert 0 is on device 77, which does not exist"},
      {"too many slots",
       [](const placement_input& input) {
         return answer(placement_proposal{everything_on(input, 1), ""});
       },
       "layer 0, expert 8 exceeds the 8 slots of device 1"},
      {"an expert without a replica",
       [](const placement_input& input) {
         auto map = everything_on(input, 0);
         for (size_t i = 0; i < map.devices.size(); ++i) map.devices[i] = static_cast<uint16_t>(i % 4);
         map.devices.pop_back();
         --map.offsets.back();
         return answer(placement_proposal{std::move(map), ""});
       },
       "layer 1, expert 15 has no replica"},
  };
  for (const auto& bad : policies) {
    CAPTURE(bad.what);
    auto options = moving_options(4);
    options.policy = bad.policy;
    simulated_cluster cluster(t1_model(), options);
    const auto board = serve(cluster);
    CAPTURE(board.rebalance.last_failure);
    CHECK(contains(board.rebalance.last_failure, bad.sentence));
    CHECK(board.rebalance.plans_refused >= 2);  // it is asked again
    CHECK(board.rebalance.plans == 0);
    CHECK(board.epoch == 1);
  }
}

TEST_CASE("a slow policy keeps nobody waiting, and is not asked again before it has answered") {
  auto options = moving_options(4);
  options.policy = shuffling_policy();
  options.solve_time = seconds(30);
  simulated_cluster cluster(t1_model(), options);
  const auto board = serve(cluster);
  CHECK(board.rebalance.asking);
  CHECK(board.rebalance.questions == 1);
  CHECK(board.rebalance.checks > 3);
  CHECK(board.epoch == 1);
}

TEST_CASE("a replica that does not come in time is given up, and its expert stays where it was") {
  auto options = moving_options(4);
  options.policy = shuffling_policy();
  options.settings.rebalance.bandwidth_mb_s = 0.001;  // seconds for one expert
  options.settings.rebalance.move_timeout_ms = 100;
  simulated_cluster cluster(t1_model(), options);
  const auto board = serve(cluster);
  CHECK(board.rebalance.moves_failed > 0);
  CHECK(board.rebalance.moves_done == 0);
  CHECK(contains(board.rebalance.last_failure, "did not come within 100 ms"));
  CHECK(board.epoch == 1);
}

TEST_CASE("a plan is superseded half-way, and what is left is consistent") {
  auto options = moving_options(4);
  options.policy = shuffling_policy();
  options.settings.rebalance.bandwidth_mb_s = 0.5;  // slower than the plans come
  simulated_cluster cluster(t1_model(), options);
  const auto board = serve(cluster);
  CHECK(board.rebalance.moves_superseded > 0);
  CHECK(board.rebalance.moves_done > 0);
  check_at_rest(cluster);
}

TEST_CASE("weights come from a live peer, and from the checkpoint when there is none") {
  auto options = moving_options(4);
  options.policy = shuffling_policy();
  options.readable = [](uint32_t, uint32_t) { return false; };
  simulated_cluster from_peers(t1_model(), options);
  uint64_t pieces = 0;
  REQUIRE(from_peers.start());
  from_peers.network().observe([&](const micro_batch_header& header, const endpoint&) {
    pieces += header.kind == message_kind::bulk && header.payload_bytes > 0 ? 1 : 0;
  });
  drifting_load load{from_peers, 8};
  for (uint32_t i = 0; i < 30; ++i) {
    load.keep_up(0);
    from_peers.run_for(milliseconds(10));
  }
  CHECK(from_peers.board().rebalance.moves_done > 0);
  CHECK(from_peers.board().rebalance.moves_failed == 0);
  CHECK(pieces >= from_peers.board().rebalance.moves_done);

  options.readable = {};
  options.policy = {};
  options.settings.rebalance.policy = "incremental";
  options.settings.redundant_replicas = 0;
  simulated_cluster lonely(t1_model(), options);
  REQUIRE(lonely.start());
  drifting_load more{lonely, 8, 200};
  more.keep_up(0);
  lonely.run_for(milliseconds(5));
  REQUIRE(!lonely.all_ended());
  lonely.crash(2);  // the only holder of a quarter of the experts; it does not come back
  REQUIRE(lonely.run_until([&] { return lonely.all_ended(); }, seconds(10)));
  more.check_streams();
  lonely.run_for(milliseconds(200));  // until the board tells
  CHECK(lonely.board().rebalance.moves_done >= moe_layers * experts / 4);
}

TEST_CASE("an expert that can be had nowhere fails with a sentence that names it") {
  auto options = moving_options(4);
  options.settings.rebalance.policy = "incremental";
  options.settings.redundant_replicas = 0;
  options.readable = [](uint32_t, uint32_t) { return false; };
  simulated_cluster cluster(t1_model(), options);
  REQUIRE(cluster.start());
  cluster.crash(2);
  REQUIRE(cluster.run_until([&] { return cluster.board().rebalance.moves_failed > 0; }, seconds(5)));
  CHECK(contains(cluster.board().rebalance.last_failure, "cannot be loaded: the checkpoint has no such tensor"));
}

TEST_CASE("nodes crash and come back, and connections break, while experts move: streams are equal, 10 seeds") {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 draw(seed);
    auto options = moving_options(4);
    options.seed = seed;
    options.policy = shuffling_policy();
    options.settings.dispatch_deadline_ms = 50;
    options.settings.selection = draw() % 2 == 0 ? replica_selection::weighted : replica_selection::nearest;
    simulated_cluster cluster(t1_model(), options);
    REQUIRE(cluster.start());
    drifting_load load{cluster, 8};
    for (uint32_t round = 0; round < 2; ++round) {
      const auto victim = static_cast<uint16_t>(1 + draw() % 3);
      for (uint64_t i = draw() % 12; i < 14; ++i) {
        load.keep_up(round);
        cluster.run_for(microseconds(draw() % 15'000));
        const auto a = static_cast<uint16_t>(draw() % 4);
        cluster.network().cut(a, static_cast<uint16_t>((a + 1 + draw() % 3) % 4));
      }
      cluster.crash(victim);
      cluster.run_for(microseconds(draw() % 50'000));
      cluster.restart(victim);
      REQUIRE(cluster.run_until([&] { return cluster.board().nodes[victim].state == "live"; }, seconds(10)));
    }
    REQUIRE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(60)));
    load.check_streams();
    check_at_rest(cluster, true);
  }
}

}  // namespace troupe::testing
