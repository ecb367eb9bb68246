#include "runtime/placement/evaluation.hpp"

#include <doctest/doctest.h>

#include <numeric>

#include "runtime/placement/eplb.hpp"
#include "runtime/placement/heat_map.hpp"
#include "runtime/placement/simple_policies.hpp"
#include "tests/runtime/placement/samples.hpp"

namespace troupe {
namespace {

using testing::made_load;

expert_map map_of(uint32_t experts, const std::vector<std::vector<uint16_t>>& replicas) {
  expert_map map{static_cast<uint32_t>(replicas.size()) / experts, experts, {0}, {}};
  for (const auto& devices : replicas) {
    map.devices.insert(map.devices.end(), devices.begin(), devices.end());
    map.offsets.push_back(static_cast<uint32_t>(map.devices.size()));
  }
  return map;
}

}  // namespace

TEST_CASE("a plan made from the windows so far is judged on the next one") {
  load_history load{1, 4, 0, {}};
  for (uint64_t window = 0; window < 4; ++window) load.windows.push_back({{window, 1, 1, 1}, {}, {}});
  std::vector<std::vector<uint64_t>> seen;
  const placement_policy watching = [&](const placement_input& input) {
    seen.emplace_back();
    for (const auto& window : input.load.windows) seen.back().push_back(window.rows[0]);
    CHECK(input.current != nullptr);
    return place_in_blocks(input);
  };
  evaluation_settings settings;
  settings.history = 2;
  const auto judged = evaluate("watching", watching, load, even_topology(1, 2, 2), settings);
  REQUIRE(judged);
  CHECK(seen == std::vector<std::vector<uint64_t>>{{0}, {0, 1}, {1, 2}});
  REQUIRE(judged->plans.size() == 3);
  // Experts 0 and 1 are on device 0: rows t + 2 of t + 4 in window t + 1.
  for (size_t t = 0; t < 3; ++t)
    CHECK(judged->plans[t].balance_mean ==
          doctest::Approx((static_cast<double>(t) + 4) / 2 / (static_cast<double>(t) + 2)));
}

TEST_CASE("eplb through time is balanced on a constant load and moves nothing after the first plan") {
  const auto load = made_load("log_normal:layers=3,experts=32,windows=4,rows_per_token=4");
  const auto judged = evaluate("eplb", place_eplb, load, even_topology(2, 2, 10), {});
  REQUIRE(judged);
  const auto sum = summarise(*judged);
  CHECK(judged->plans[0].move_bytes > 0);
  CHECK(sum.move_bytes == 0);
  CHECK(sum.failures == 0);
  CHECK(sum.mean.balance_mean > 0.9);
  CHECK(sum.mean.balance_mean <= sum.mean.bound + 1e-9);
}

TEST_CASE("the solve time is what the clock says between asking a policy and its answer") {
  double now = 0;
  evaluation_settings settings;
  settings.seconds = [&] { return now; };
  const placement_policy slow = [&](const placement_input& input) {
    now += 2.5;
    return place_in_blocks(input);
  };
  const auto judged =
      evaluate("slow", slow, made_load("uniform:layers=1,experts=8,windows=3"), even_topology(1, 2, 4), settings);
  REQUIRE(judged);
  CHECK(summarise(*judged).mean.solve_seconds == doctest::Approx(2.5));
}

TEST_CASE("rows that cross nodes are counted by where their sources are") {
  // Two nodes of two devices; expert 0 on node 0, expert 1 on both nodes.
  const auto topology = even_topology(2, 2, 4);
  const auto map = map_of(2, {{0}, {1, 2}});
  load_history load{1, 2, 2, {}};
  load.windows.push_back({{10, 30}, {4, 20, 6, 10}, {}});  // source 0 is device 0, source 1 is device 2
  const auto even = dispatch(map, load, load.windows[0], topology, {}, replica_selection::even, {});
  CHECK(even.device_rows == std::vector<double>{10, 15, 15, 0});
  CHECK(even.crossing == doctest::Approx(6 + 20 / 2.0 + 10 / 2.0));
  const auto nearest = dispatch(map, load, load.windows[0], topology, {}, replica_selection::nearest, {});
  CHECK(nearest.device_rows == std::vector<double>{10, 20, 10, 0});
  CHECK(nearest.crossing == 6);
  const std::vector<double> rows = {10, 30};
  const auto shares = level_shares(map, rows, 4);
  const auto weighted = dispatch(map, load, load.windows[0], topology, {}, replica_selection::weighted, shares);
  CHECK(weighted.device_rows[1] == doctest::Approx(15));
  // Without sources, rows come from all devices alike: half of them from each node.
  load.sources = 0;
  load.windows[0].source_rows.clear();
  CHECK(dispatch(map, load, load.windows[0], topology, {}, replica_selection::even, {}).crossing ==
        doctest::Approx(20));
}

TEST_CASE("sources stay at their devices whichever of the others are dead; a dead one's are at the next live one") {
  using places = std::vector<uint16_t>;
  CHECK(source_devices(8, 4, {}) == places{0, 0, 1, 1, 2, 2, 3, 3});
  CHECK(source_devices(4, 4, {{true, false, true, true}}) == places{0, 2, 2, 3});
  CHECK(source_devices(4, 4, {{true, true, false, false}}) == places{0, 1, 0, 0});
  CHECK(source_devices(0, 4, {{true, false, true, true}}) == places{0, 2, 3});
  CHECK(source_devices(4, 2, {{false, false}}).empty());
}

TEST_CASE("levelled shares are shares, and never leave a device fuller than even ones do") {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    CAPTURE(seed);
    const auto asked = testing::random_question(seed);
    const auto plan = place(place_eplb_distinct, asked.input());
    REQUIRE(plan);
    const auto rows = expected_rows(asked.load, 0);
    const size_t devices = asked.topology.devices.size();
    const auto shares = level_shares(plan->map, rows, devices);
    for (size_t i = 0; i + 1 < plan->map.offsets.size(); ++i) {
      const auto from = shares.begin() + plan->map.offsets[i];
      const auto to = shares.begin() + plan->map.offsets[i + 1];
      CHECK(std::accumulate(from, to, 0.0) == doctest::Approx(1).epsilon(1e-5));
      CHECK(*std::min_element(from, to) >= 0);
    }
    const auto even = device_rows(plan->map, rows, devices);
    const auto levelled = device_rows(plan->map, rows, devices, shares);
    for (uint32_t layer = 0; layer < asked.load.layers; ++layer) {
      const auto highest = [&](const std::vector<double>& load) {
        return *std::max_element(load.begin() + static_cast<std::ptrdiff_t>(layer * devices),
                                 load.begin() + static_cast<std::ptrdiff_t>((layer + 1) * devices));
      };
      CHECK(highest(levelled) <= highest(even) * (1 + 1e-5) + 1e-9);
    }
  }
}

TEST_CASE("the replica for a row depends on map, source and key alone, and follows its policy") {
  const auto topology = even_topology(2, 2, 4);
  const std::vector<uint16_t> replicas = {0, 1, 3};
  const std::vector<float> shares = {0.5F, 0.0F, 0.5F};
  std::vector<int> even(3);
  std::vector<int> weighted(3);
  std::vector<int> nearest(3);
  for (uint64_t key = 0; key < 3000; ++key) {
    const auto choose = [&](replica_selection selection, uint16_t source) {
      const auto chosen = select_replica(selection, replicas, shares, topology, source, key);
      CHECK(chosen == select_replica(selection, replicas, shares, topology, source, key));
      return chosen;
    };
    ++even[choose(replica_selection::even, 2)];
    ++weighted[choose(replica_selection::weighted, 2)];
    CHECK(choose(replica_selection::nearest, 1) == 1);  // its own device
    CHECK(choose(replica_selection::nearest, 2) == 2);  // its own node
    ++nearest[select_replica(replica_selection::nearest, std::vector<uint16_t>{0, 1}, {}, topology, 2, key)];
  }
  CHECK(weighted[1] == 0);
  for (const int count : even) CHECK(std::abs(count - 1000) < 150);
  CHECK(std::abs(weighted[0] - 1500) < 150);
  CHECK(std::abs(nearest[0] - 1500) < 150);  // both as far away
}

TEST_CASE("a heat map is one SVG of both panels, small even for many cells") {
  std::vector<double> rows(58 * 144);
  seeded_random random(3);
  for (auto& entry : rows) entry = random.uniform();
  const std::vector<heat_panel> panels = {{"before <b>", rows}, {"after & later", rows}};
  const auto svg = heat_map_svg("a title", panels, 58, 144);
  CHECK(svg.rfind("<svg ", 0) == 0);
  CHECK(svg.find("</svg>\n") == svg.size() - 7);
  CHECK(svg.find("before &lt;b&gt;") != std::string::npos);
  CHECK(svg.find("after &amp; later") != std::string::npos);
  CHECK(svg.size() < 500'000);
}

TEST_CASE("an evaluation of what does not fit together is refused") {
  CHECK(evaluate("eplb", place_eplb, made_load("uniform:layers=1,experts=64,windows=2"), even_topology(1, 2, 4), {})
            .failure()
            .message.find("8 slots a layer") != std::string::npos);
  CHECK_FALSE(evaluate("eplb", place_eplb, {1, 8, 0, {}}, even_topology(1, 2, 4), {}));
}

}  // namespace troupe
