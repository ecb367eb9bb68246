// Which shard serves a request changes no token, whoever chooses, and every charge is given back.
#include <doctest/doctest.h>

#include "tests/simulation/simulation_fixtures.hpp"

namespace troupe::testing {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_CASE("streams do not depend on the balancers of sequences, and no charge is left when all have ended") {
  struct balancers {
    std::string prefill, decode;
  };
  const balancers tried[] = {{"published", "stay"},
                             {"round_robin", "published"},
                             {"random:seed=3", "round_robin"},
                             {"published", "random:seed=5"}};
  for (const auto& one : tried) {
    CAPTURE(one.prefill);
    CAPTURE(one.decode);
    auto options = t1_options(4);
    options.settings.prefill_balancer = one.prefill;
    options.settings.decode_balancer = one.decode;
    simulated_cluster cluster(t1_model(), options);
    REQUIRE(cluster.start());
    for (uint32_t i = 0; i < 33; ++i) cluster.submit(mixed_request(i));
    cluster.run_for(milliseconds(1));
    cluster.cancel(32);
    REQUIRE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(60)));
    cluster.run_for(milliseconds(500));
    for (uint32_t i = 0; i < 32; ++i) {
      CAPTURE(i);
      CHECK(result_of(*cluster.streams()[i]) == alone(i));
    }
    const auto board = cluster.board();
    for (const auto& balance : {board.prefill, board.decode}) {
      CHECK(balance.shards == 4);
      CHECK(balance.choices >= 32);
      // Nothing is charged any more.
      CHECK(balance.imbalance.requests == 1);
      CHECK(balance.imbalance.tokens == 1);
      CHECK(balance.imbalance.attention_work == 1);
    }
    CHECK(board.requests.failed == 0);
    for (const auto& node : board.nodes) CHECK(node.counters.kv_blocks_free == node.counters.kv_blocks);
  }
}

TEST_CASE("the published prefill balancer keeps attention work more level than turns do") {
  const auto imbalance = [](const std::string& prefill) {
    auto options = t1_options(4);
    options.settings.prefill_balancer = prefill;
    simulated_cluster cluster(t1_model(), options);
    cluster.start();
    for (uint32_t i = 0; i < 32; ++i) {
      auto request = mixed_request(i, 200);
      request.prompt_ids.resize(i % 4 == 0 ? 60 : 4, 9);
      request.ignore_eos = true;
      cluster.submit(request);
    }
    cluster.run_for(milliseconds(2));
    return cluster.board().prefill.imbalance.attention_work;
  };
  const double published = imbalance("published");
  const double turns = imbalance("round_robin");
  MESSAGE("most loaded shard over the mean: published " << published << ", round_robin " << turns);
  CHECK(published < 1.2);
  CHECK(turns > 2);
}

}  // namespace troupe::testing
