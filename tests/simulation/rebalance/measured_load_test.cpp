// The load that a serving cluster measures: rows by source, and experts chosen together, against a count by hand.
#include <doctest/doctest.h>

#include <map>
#include <numeric>
#include <tuple>

#include "runtime/placement/load_files.hpp"
#include "tests/simulation/plain_forward.hpp"
#include "tests/simulation/rebalance/moving_experts.hpp"

namespace troupe::testing {

namespace {

const std::vector<bool> moe{false, true, true};  // T1's layers

struct counted_load {
  std::vector<uint64_t> rows = std::vector<uint64_t>(moe_layers * experts);
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, uint64_t> pairs;  // [layer, a, b]
  bool operator==(const counted_load&) const = default;
};

// What the routing of the streams' tokens amounts to, computed by the forward pass alone. A stream's last token is
// never an input.
counted_load count_by_hand(const simulated_cluster& cluster, const std::vector<generation_request>& requests) {
  const temporary_directory directory;
  write_t1_model(directory.path());
  counted_load counted;
  for (size_t i = 0; i < requests.size(); ++i) {
    plain_forward model(directory.path(), kernels::compute::make(kernels::profile::f32));
    model.at_gate = [&](int layer, const micro_batch_rows& rows) {
      const auto k = static_cast<size_t>(model.config().num_experts_per_tok);
      const auto moe_layer = static_cast<uint32_t>(layer) - 1;
      for (size_t row = 0; row < static_cast<size_t>(rows.count()); ++row)
        for (size_t one = 0; one < k; ++one) {
          const auto a = static_cast<uint32_t>(rows.routes[row * k + one].expert);
          ++counted.rows[moe_layer * experts + a];
          for (size_t other = 0; other < k; ++other) {
            const auto b = static_cast<uint32_t>(rows.routes[row * k + other].expert);
            if (a < b) ++counted.pairs[{moe_layer, a, b}];
          }
        }
    };
    auto tokens = requests[i].prompt_ids;
    const auto& stream = cluster.streams()[i]->tokens;
    tokens.insert(tokens.end(), stream.begin(), stream.end() - 1);
    model.run(tokens, 0);
  }
  return counted;
}

// All windows of a measured load as one.
counted_load sum_of_windows(const load_history& load) {
  counted_load sum;
  for (const auto& window : load.windows) {
    for (size_t i = 0; i < sum.rows.size(); ++i) sum.rows[i] += window.rows[i];
    for (const auto& pair : window.pairs) sum.pairs[{pair.layer, pair.a, pair.b}] += pair.tokens;
  }
  return sum;
}

void check_sources(const load_history& load) {
  const size_t entries = size_t{load.layers} * load.experts;
  for (const auto& window : load.windows) {
    REQUIRE(window.source_rows.size() == entries * load.sources);
    for (size_t i = 0; i < entries; ++i) {
      uint64_t sum = 0;
      for (size_t source = 0; source < load.sources; ++source) sum += window.source_rows[source * entries + i];
      REQUIRE(sum == window.rows[i]);
    }
  }
}

simulation_options measuring_options(uint32_t nodes) {
  auto options = moving_options(nodes);
  options.settings.heartbeat_ms = 5;
  options.settings.shards_per_node = 2;
  options.settings.rebalance.window_ms = 50;
  options.settings.rebalance.co_activation = true;
  return options;
}

std::vector<generation_request> submit_some(simulated_cluster& cluster, uint32_t count) {
  std::vector<generation_request> requests;
  for (uint32_t i = 0; i < count; ++i) {
    requests.push_back(mixed_request(i, 24));
    requests.back().ignore_eos = true;
    cluster.submit(requests.back());
    if (i % 8 == 7) cluster.run_for(milliseconds(60));
  }
  return requests;
}

void end_and_tell(simulated_cluster& cluster) {
  REQUIRE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(60)));
  cluster.run_for(milliseconds(300));  // past the last report and its window
}

}  // namespace

TEST_CASE("a measured load equals what the routing of every token amounts to, by expert, source and pair") {
  simulated_cluster cluster(t1_model(), measuring_options(4));
  REQUIRE(cluster.start());
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> sent;  // rows by source and MoE layer, as the network saw them
  uint64_t crossed = 0;
  cluster.network().observe([&](const micro_batch_header& header, const endpoint& to) {
    if (header.kind != message_kind::dispatch) return;
    sent[{header.source_node * 2U + header.source_slot - 1U, header.layer - 1}] += header.pair_count;
    if (header.source_node != to.node) crossed += header.pair_count;
  });
  const auto requests = submit_some(cluster, 24);
  end_and_tell(cluster);
  const auto load = cluster.board().load->history();
  CHECK(load.sources == 8);
  CHECK(load.windows.size() >= 4);
  check_sources(load);
  const auto counted = count_by_hand(cluster, requests);
  const auto measured = sum_of_windows(load);
  CHECK(measured.rows == counted.rows);
  CHECK(counted.pairs.size() > 100);
  CHECK(measured.pairs == counted.pairs);

  uint64_t sources_with_rows = 0;
  for (uint32_t source = 0; source < load.sources; ++source)
    for (uint32_t layer = 0; layer < moe_layers; ++layer) {
      uint64_t rows = 0;
      for (const auto& window : load.windows) {
        const auto from = window.source_rows.begin() + (source * moe_layers + layer) * experts;
        rows = std::accumulate(from, from + experts, rows);
      }
      const uint64_t expected = sent[{source, layer}];
      CHECK(rows == expected);
      sources_with_rows += rows > 0 ? 1 : 0;
    }
  CHECK(sources_with_rows == 16);

  // What `troupe place` says of the rows that leave their node is what left it.
  const auto map = map_of(*cluster.board().placement, moe);
  double crossing = 0;
  for (const auto& window : load.windows)
    crossing += dispatch(map, load, window, even_topology(4, 1, slots), {}, replica_selection::first, {}).crossing;
  CHECK(crossing == static_cast<double>(crossed));
  CHECK(crossed > 0);
}

TEST_CASE("a measured load is the same each time, and comes back from both kinds of file") {
  const auto measure = [] {
    simulated_cluster cluster(t1_model(), measuring_options(2));
    REQUIRE(cluster.start());
    submit_some(cluster, 8);
    end_and_tell(cluster);
    return cluster.board().load->history();
  };
  const auto load = measure();
  const auto bytes = to_binary(load);
  CHECK(bytes == to_binary(measure()));
  REQUIRE(std::ranges::any_of(load.windows, [](const load_window& window) { return !window.pairs.empty(); }));
  for (const auto& file : {bytes, to_csv(load)}) {
    const auto read = parse_load(file, "a file");
    REQUIRE_MESSAGE(read, (read ? "" : read.failure().message));
    CHECK(to_binary(*read) == bytes);
  }
}

TEST_CASE("a policy is asked with the sources and pairs of the windows that it is shown") {
  auto options = measuring_options(2);
  uint32_t asked = 0;
  options.policy = [&](const placement_input& input) -> result<placement_proposal> {
    REQUIRE(input.load.sources == 4);
    check_sources(input.load);
    asked += std::ranges::any_of(input.load.windows, [](const auto& window) { return !window.pairs.empty(); }) ? 1 : 0;
    return placement_proposal{*input.current, "as it is"};
  };
  simulated_cluster cluster(t1_model(), options);
  REQUIRE(cluster.start());
  submit_some(cluster, 60);
  end_and_tell(cluster);
  CHECK(asked > 0);
}

TEST_CASE("a source keeps its number while nodes join and drain, and rows are those of all sources") {
  auto options = measuring_options(3);
  options.settings.nodes_max = 5;
  options.settings.rebalance.policy = "incremental";
  options.settings.rebalance.window_ms = 200;  // hosts count up their rows every 100 ms
  simulated_cluster cluster(t1_model(), options);
  REQUIRE(cluster.start());
  drifting_load load{cluster};
  const auto run = [&](uint32_t rounds) {
    for (uint32_t i = 0; i < rounds; ++i) {
      load.keep_up(i / 10);
      cluster.run_for(milliseconds(10));
    }
    return cluster.board().load->history();
  };
  const auto rows_from = [&](const load_window& window, uint32_t node) {
    const auto entries = static_cast<std::ptrdiff_t>(moe_layers * experts);
    const auto from = window.source_rows.begin() + 2 * node * entries;
    return std::accumulate(from, from + 2 * entries, uint64_t{0});
  };
  auto measured = run(30);
  CHECK(measured.sources == 10);
  CHECK(rows_from(measured.windows.back(), 1) > 0);
  CHECK(rows_from(measured.windows.back(), 3) == 0);
  cluster.join(3);
  cluster.drain(1);
  measured = run(80);
  CHECK(cluster.released(1));
  check_sources(measured);
  CHECK(rows_from(measured.windows.back(), 1) == 0);
  CHECK(rows_from(measured.windows.back(), 3) > 0);
  for (const auto& window : measured.windows) CHECK(rows_from(window, 4) == 0);
  REQUIRE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(60)));
  load.check_streams();
}

TEST_CASE("streams are the same with and without a count of pairs and sources") {
  for (const bool counting : {false, true}) {
    auto options = measuring_options(4);
    options.settings.rebalance.by_source = options.settings.rebalance.co_activation = counting;
    simulated_cluster cluster(t1_model(), options);
    REQUIRE(cluster.start());
    for (uint32_t i = 0; i < 12; ++i) cluster.submit(mixed_request(i));
    end_and_tell(cluster);
    for (uint32_t i = 0; i < 12; ++i) CHECK(result_of(*cluster.streams()[i]) == alone(i));
    const auto load = cluster.board().load->history();
    CHECK(load.sources == (counting ? 8 : 0));
    for (const auto& window : load.windows) CHECK((counting || (window.source_rows.empty() && window.pairs.empty())));
  }
}

}  // namespace troupe::testing
