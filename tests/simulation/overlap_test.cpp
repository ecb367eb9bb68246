// How much of the wire's time schedules hide, measured exactly against the run's own bound in virtual time.
//
// The device's stages and the links have stated costs; the arithmetic is real. Every device and link is
// loaded alike, so that what is measured is the schedule.
#include <doctest/doctest.h>

#include <fstream>
#include <set>

#include "tests/simulation/simulation_fixtures.hpp"

namespace troupe::testing {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

namespace {

constexpr uint32_t nodes = 4;
constexpr uint32_t experts = 32;
constexpr uint32_t top_k = 4;
constexpr uint32_t hidden = 32;
constexpr double row_ns = 4000;  // compute of a row in a layer
// Its shares.
constexpr double attn_0_share = 0.15, attn_1_share = 0.25, shared_share = 0.05, mlp_share = 0.55;

// All layers are MoE layers. Every node's experts have the same tastes, so that a row wants one expert of
// each node, whatever it is.
std::shared_ptr<simulated_model> balanced_model(int layers) {
  spdlog::set_level(spdlog::level::err);
  temporary_directory directory;
  auto config = t1_config();
  config["num_hidden_layers"] = layers;
  config["first_k_dense_replace"] = 0;
  config["n_routed_experts"] = experts;
  config["num_experts_per_tok"] = top_k;
  config["n_group"] = config["topk_group"] = 1;
  write_model(directory.path(), config, [&](const std::string& name, size_t i) {
    if (name.ends_with("e_score_correction_bias")) return 0.0F;
    return t0_value(name, name.ends_with("mlp.gate.weight") ? i % (experts / nodes * hidden) : i);
  });
  return *simulated_model::load(directory.path(), kernels::compute::make(kernels::profile::f32));
}

std::shared_ptr<simulated_model> deep_model() {
  static const auto model = balanced_model(24);
  return model;
}

nanoseconds ns(double value) { return nanoseconds(static_cast<int64_t>(value)); }

// `wire_over_compute`: what a micro-batch's dispatch and combine take on an idle link, over what its
// stages take.
simulation_options overlap_options(const schedule& cut, double wire_over_compute) {
  auto options = t1_options(nodes);
  auto& settings = options.settings;
  settings.schedule = cut;
  settings.redundant_replicas = 0;
  settings.kv_blocks = 4096;
  settings.sequences_max = 1024;
  settings.rows_max = 256;
  settings.chunk = 512;
  settings.heartbeat_ms = 5;
  settings.verdict_ms = 60000;
  settings.dispatch_deadline_ms = 60000;
  settings.dispatch = settings.combine = wire_dtype::bf16;
  std::array<stage_cost, stage_kind_count> stages{};
  stages[index_of(stage_kind::attn)].per_row = ns((attn_0_share + attn_1_share) * row_ns);
  stages[index_of(stage_kind::attn_0)].per_row = ns(attn_0_share * row_ns);
  stages[index_of(stage_kind::attn_1)].per_row = ns(attn_1_share * row_ns);
  stages[index_of(stage_kind::shared)].per_row = ns(shared_share * row_ns);
  stages[index_of(stage_kind::mlp)].per_row = ns(mlp_share * row_ns / top_k);
  stages[index_of(stage_kind::head)].per_row = ns(0.01 * row_ns);
  options.device.stages = stages;
  // Over each link goes every row once, with one pair's entry, and one output comes back.
  const double bytes_per_row = 2 * (hidden * 2 + 12);
  options.link.latency = nanoseconds(1000);
  options.link.bytes_per_s = bytes_per_row / (wire_over_compute * row_ns) * 1e9;
  return options;
}

struct outcome {
  run_times times;
  double elapsed_ms = 0;
  double tokens_per_ms = 0;
  double reached() const { return static_cast<double>(times.bound_ns()) * 1e-6 / elapsed_ms; }
};

uint64_t tokens_of(const simulated_cluster& cluster) {
  uint64_t sum = 0;
  for (const auto& stream : cluster.streams()) sum += stream->tokens.size();
  return sum;
}

// Decoding of `sequences` sequences a shard, from `warm_up` tokens of each to `steps` more.
outcome decode(const std::shared_ptr<simulated_model>& model, const simulation_options& options, uint32_t sequences,
               uint32_t warm_up, uint32_t steps, const std::filesystem::path& timeline_file = {}) {
  simulated_cluster cluster(model, options);
  REQUIRE(cluster.start());
  for (uint32_t i = 0; i < options.settings.nodes * sequences; ++i) {
    auto request = mixed_request(i, warm_up + steps + 40);
    request.ignore_eos = true;
    request.prompt_ids.resize(1, 9);
    cluster.submit(request);
  }
  const auto run_to = [&](uint64_t count) {
    while (tokens_of(cluster) < count) REQUIRE(cluster.run_for(nanoseconds(200'000)));
  };
  const uint64_t all = uint64_t{options.settings.nodes} * sequences;
  run_to(all * warm_up);
  if (!timeline_file.empty()) REQUIRE(cluster.begin_timelines(timeline_file));
  const auto before = cluster.times();
  const uint64_t tokens_before = tokens_of(cluster);
  const auto begin = cluster.scheduler().time().now();
  run_to(all * (warm_up + steps));
  const auto elapsed = std::chrono::duration<double, std::milli>(cluster.scheduler().time().now() - begin).count();
  if (!timeline_file.empty()) REQUIRE(cluster.end_timelines());
  return {between(before, cluster.times()), elapsed,
          static_cast<double>(tokens_of(cluster) - tokens_before) / elapsed};
}

// Prompts of 512 tokens, all submitted at once. The fill is left out: the first attention stage, and the
// last combine.
outcome prefill(const simulation_options& options, uint32_t prompts, const std::filesystem::path& timeline_file = {}) {
  constexpr uint32_t prompt_tokens = 512;
  simulated_cluster cluster(deep_model(), options);
  REQUIRE(cluster.start());
  cluster.run_for(milliseconds(20));
  if (!timeline_file.empty()) REQUIRE(cluster.begin_timelines(timeline_file));
  const auto before = cluster.times();
  const auto begin = cluster.scheduler().time().now();
  for (uint32_t i = 0; i < nodes * prompts; ++i) {
    auto request = mixed_request(i, 1);
    request.ignore_eos = true;
    request.prompt_ids.resize(prompt_tokens - 1);
    for (uint32_t j = 0; j + 1 < prompt_tokens; ++j)
      request.prompt_ids[j] = static_cast<int32_t>(2 + (i * 31 + j * 17) % 62);
    cluster.submit(request);
  }
  REQUIRE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(100)));
  const auto elapsed = std::chrono::duration<double, std::milli>(cluster.scheduler().time().now() - begin).count();
  cluster.run_for(milliseconds(20));  // the last heartbeats
  const auto times = between(before, cluster.times());
  if (!timeline_file.empty()) REQUIRE(cluster.end_timelines());
  for (const auto& stream : cluster.streams()) REQUIRE(!stream->failure);
  const double part = prompt_tokens / 2.0;
  const double fill = part * row_ns * (attn_0_share + attn_1_share) * 1e-6 +
                      part * (hidden * 2 + 12) / options.link.bytes_per_s * 1e3;
  return {times, elapsed - fill, nodes * prompts * prompt_tokens / (elapsed - fill)};
}

void print(const std::string& what, double ratio, const outcome& run) {
  const auto ms = [](uint64_t time_ns) { return static_cast<double>(time_ns) * 1e-6; };
  MESSAGE(what << ", wire " << ratio << " x compute: " << run.elapsed_ms << " ms; device " << ms(run.times.device_ns)
               << ", link " << ms(run.times.link_ns) << ", chain " << ms(run.times.chain_ns) << "; reached "
               << 100 * run.reached() << " % of the bound");
}

schedule shipped(const std::string& name) { return *find_schedule(name, "."); }

}  // namespace

TEST_CASE("dual_decode reaches 95 % of its bound when the wire takes 0.5, 1 and 2 times as long as compute") {
  for (const double ratio : {0.5, 1.0, 2.0}) {
    const auto dual = decode(deep_model(), overlap_options(shipped("dual_decode"), ratio), 256, 6, 8);
    print("dual_decode", ratio, dual);
    CHECK(dual.reached() >= 0.95);
    const auto serial = decode(deep_model(), overlap_options(shipped("serial"), ratio), 256, 6, 8);
    print("serial     ", ratio, serial);
    CHECK(dual.tokens_per_ms > 1.2 * serial.tokens_per_ms);
  }
}

TEST_CASE("dual_prefill reaches 95 % of its bound when the wire takes 0.5, 1 and 2 times as long as compute") {
  for (const double ratio : {0.5, 1.0, 2.0}) {
    const auto dual = prefill(overlap_options(shipped("dual_prefill"), ratio), 6);
    print("dual_prefill", ratio, dual);
    CHECK(dual.reached() >= 0.95);
    const auto serial = prefill(overlap_options(shipped("serial"), ratio), 6);
    print("serial      ", ratio, serial);
    CHECK(dual.tokens_per_ms > 1.2 * serial.tokens_per_ms);
  }
}

}  // namespace troupe::testing
