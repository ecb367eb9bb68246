#include "runtime/serving/shard_load.hpp"

#include <doctest/doctest.h>

#include <set>
#include <vector>

namespace troupe {

TEST_CASE("the balancers' choices have names; round_robin takes turns, random depends on its seed and turn alone") {
  const std::vector<shard_load> loads(4);
  const auto turns = *make_prefill_choice("round_robin");
  for (uint64_t turn = 0; turn < 8; ++turn) CHECK(turns(loads, 10, turn) == turn % 4);
  const auto random = *make_prefill_choice("random:seed=7");
  std::set<size_t> chosen;
  for (uint64_t turn = 0; turn < 64; ++turn) {
    CHECK(random(loads, 10, turn) == random(loads, 99, turn));
    chosen.insert(random(loads, 10, turn));
  }
  CHECK(chosen.size() == 4);
  CHECK((*make_decode_choice("stay"))(2, loads, 0) == 2);
  CHECK(make_prefill_choice("round_robbin").failure().message ==
        "there is no prefill balancer 'round_robbin'; did you mean 'round_robin'?");
  CHECK(make_decode_choice("random:sed=1").failure().code == errc::invalid_argument);
}

TEST_CASE("the published decode balancer takes the shard with least KV use, then fewest requests, and else leaves it") {
  const auto choose = *make_decode_choice("published");
  CHECK(choose(0, std::vector<shard_load>{{2, 50, 0}, {9, 20, 0}, {1, 20, 0}}, 0) == 2);
  CHECK(choose(1, std::vector<shard_load>{{1, 20, 0}, {1, 20, 0}}, 0) == 1);
}

TEST_CASE("imbalance is the most loaded shard over the mean, and 1 when nothing is loaded") {
  const std::vector<shard_load> loads{{3, 10, 0}, {1, 30, 0}};
  const auto found = imbalance_of(loads);
  CHECK(found.requests == doctest::Approx(1.5));
  CHECK(found.tokens == doctest::Approx(1.5));
  CHECK(found.attention_work == 1);
}

}  // namespace troupe
