#include "runtime/serving/load_collector.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

namespace troupe {

namespace {

// Layer 0 is dense.
const std::vector<bool> layers{false, true, true};
constexpr uint32_t experts = 4;
constexpr node_id node{1};
constexpr incarnation_id first{7};
constexpr incarnation_id second{8};

bool equal(const expert_pair& x, const expert_pair& y) {
  return x.layer == y.layer && x.a == y.a && x.b == y.b && x.tokens == y.tokens;
}

}  // namespace

TEST_CASE("rows are told as sums: a window has what came since the window before, by source and in all") {
  load_collector collector(layers, experts, 2, false);
  // Expert 1 of layer 1 (entry 5) and expert 3 of layer 2 (entry 11).
  REQUIRE(collector.add(node, first, {{5, 11}, {10, 1, 0, 4}}));
  auto window = collector.take();
  CHECK(window.rows == std::vector<uint64_t>{0, 11, 0, 0, 0, 0, 0, 4});
  CHECK(window.source_rows == std::vector<uint64_t>{0, 10, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 4});
  CHECK(bytes_of(window) == 24 * sizeof(uint64_t));

  // A report was lost before this one; another expert has come to the node; another node tells of the same ones.
  REQUIRE(collector.add(node, first, {{4, 5, 11}, {3, 0, 12, 1, 0, 4}}));
  REQUIRE(collector.add(node_id{2}, first, {{5}, {100, 0}}));
  window = collector.take();
  CHECK(window.rows == std::vector<uint64_t>{3, 102, 0, 0, 0, 0, 0, 0});
  CHECK(window.source_rows == std::vector<uint64_t>{3, 102, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});

  // A new process of the node begins from nothing.
  REQUIRE(collector.add(node, second, {{5}, {1, 1}}));
  CHECK(collector.take().rows == std::vector<uint64_t>{0, 2, 0, 0, 0, 0, 0, 0});
  CHECK(collector.window().rows == std::vector<uint64_t>(8));
}

TEST_CASE("without sources there are rows alone") {
  load_collector collector(layers, experts, 0, false);
  REQUIRE(collector.add(node, first, {{6}, {5}}));
  const auto window = collector.take();
  CHECK(window.rows[2] == 5);
  CHECK(window.source_rows.empty());
}

TEST_CASE("what does not fit the model and its cluster is left out as a whole") {
  load_collector collector(layers, experts, 2, true);
  CHECK_FALSE(collector.add(node, first, {{5}, {10}}));             // one source
  CHECK_FALSE(collector.add(node, first, {{5}, {10, 1, 1}}));       // three
  CHECK_FALSE(collector.add(node, first, {{}, {10, 1}}));           // rows of no expert
  CHECK_FALSE(collector.add(node, first, {{12}, {10, 1}}));         // beyond the last layer
  CHECK_FALSE(collector.add(node, first, {{6, 5}, {1, 1, 1, 1}}));  // not ascending
  CHECK_FALSE(collector.add(node, first, {{5, 5}, {1, 1, 1, 1}}));
  CHECK(collector.add(node, first, {{0}, {1, 1}}));  // a dense layer's are no load
  CHECK_FALSE(collector.add({0, {0}, {1}}));         // dense
  CHECK_FALSE(collector.add({3, {0}, {1}}));         // no such layer
  CHECK_FALSE(collector.add({1, {0, 6}, {1, 1}}));   // no such pair
  CHECK_FALSE(collector.add({1, {0, 1}, {1}}));
  CHECK_FALSE(collector.add({1, {1, 0}, {1, 1}}));
  CHECK_FALSE(collector.add({1, {2, 2}, {1, 1}}));
  const auto window = collector.take();
  CHECK(std::accumulate(window.rows.begin(), window.rows.end(), uint64_t{0}) == 0);
  CHECK(window.pairs.empty());
  load_collector without(layers, experts, 2, false);
  CHECK_FALSE(without.add({1, {0}, {1}}));
}

TEST_CASE("pairs that shards count and tell add up to the pairs of every token's top-k") {
  constexpr uint32_t many = 33;
  constexpr size_t top_k = 5;
  const std::vector<bool> model{true, false, true};
  std::mt19937_64 draw(11);
  std::vector<pair_counts> shards(3, pair_counts(model, many));
  load_collector collector(model, many, 0, true);
  for (int windows = 0; windows < 3; ++windows) {
    std::map<std::tuple<uint32_t, uint32_t, uint32_t>, uint64_t> expected;  // [MoE layer, b, a]
    for (int step = 0; step < 60; ++step) {
      const uint32_t layer = draw() % 2 == 0 ? 0 : 2;
      std::vector<kernels::routed_expert> routes;
      for (uint64_t token = 0; token < 1 + draw() % 7; ++token) {
        std::vector<int> all(many);
        std::iota(all.begin(), all.end(), 0);
        std::shuffle(all.begin(), all.end(), draw);
        for (size_t i = 0; i < top_k; ++i) {
          routes.push_back({all[i], 0});
          for (size_t j = 0; j < i; ++j) {
            const auto one = static_cast<uint32_t>(all[i]);
            const auto other = static_cast<uint32_t>(all[j]);
            ++expected[{layer / 2, std::max(one, other), std::min(one, other)}];
          }
        }
      }
      auto& shard = shards[draw() % shards.size()];
      shard.count(layer, routes, top_k);
      if (step % 9 == 0)
        for (const uint32_t taken : {0U, 2U}) REQUIRE(collector.add(shard.take(taken)));
    }
    for (auto& shard : shards) {
      for (const uint32_t taken : {2U, 0U}) REQUIRE(collector.add(shard.take(taken)));
      CHECK(shard.take(0).pairs.empty());
      CHECK(shard.take(1).pairs.empty());
    }
    const auto window = collector.take();
    REQUIRE(window.pairs.size() == expected.size());
    size_t i = 0;
    for (const auto& [pair, tokens] : expected) {
      const auto [layer, b, a] = pair;
      REQUIRE(equal(window.pairs[i++], {layer, a, b, tokens}));
    }
  }
}

}  // namespace troupe
