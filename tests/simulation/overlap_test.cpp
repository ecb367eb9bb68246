// How much of the wire's time schedules hide, measured against the run's own bound in virtual time.
#include <doctest/doctest.h>

#include <cstdlib>

#include "tests/simulation/simulation_fixtures.hpp"

namespace troupe::testing {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

namespace {

constexpr int layers = 6;
constexpr int experts = 32;

std::shared_ptr<simulated_model> deep_model() {
  static const std::shared_ptr<simulated_model> model = [] {
    spdlog::set_level(spdlog::level::err);
    temporary_directory directory;
    auto config = t1_config();
    config["num_hidden_layers"] = layers;
    config["first_k_dense_replace"] = 0;
    config["n_routed_experts"] = experts;
    config["n_group"] = config["topk_group"] = 1;
    const size_t hidden = config["hidden_size"];
    // Experts in pairs of opposite taste, so that no node is preferred: what is measured is the schedule.
    write_model(directory.path(), config, [&](const std::string& name, size_t i) {
      if (name.ends_with("e_score_correction_bias")) return 0.0F;
      if (!name.ends_with("mlp.gate.weight")) return t0_value(name, i);
      const size_t expert = i / hidden;
      const float value = 4 * t0_value(name, expert / 2 * hidden + i % hidden);
      return expert % 2 == 0 ? value : -value;
    });
    return *simulated_model::load(directory.path(), kernels::compute::make(kernels::profile::f32));
  }();
  return model;
}

schedule shipped(const std::string& name) { return name.size() > 20 ? *parse_schedule(name) : *find_schedule(name, "."); }

// Shares of a micro-batch's compute in a layer.
constexpr double attn_0_share = 0.2, attn_1_share = 0.25, shared_share = 0.1, mlp_share = 0.45;

simulation_options overlap_options(const std::string& schedule_name, double wire_over_compute, uint32_t sequences) {
  auto options = t1_options(4);
  auto& settings = options.settings;
  settings.schedule = shipped(schedule_name);
  settings.redundant_replicas = 0;
  settings.kv_blocks = 4096;
  settings.sequences_max = 1024;
  settings.rows_max = 512;
  settings.chunk = 512;
  settings.heartbeat_ms = 5;
  settings.verdict_ms = 60000;
  settings.dispatch_deadline_ms = 60000;
  settings.dispatch = settings.combine = wire_dtype::bf16;
  (void)sequences;
  const double row_ns = 4000;
  const auto ns = [](double value) { return nanoseconds(static_cast<int64_t>(value)); };
  std::array<stage_cost, stage_kind_count> stages{};
  stages[index_of(stage_kind::attn)].per_row = ns((attn_0_share + attn_1_share) * row_ns);
  stages[index_of(stage_kind::attn_0)].per_row = ns(attn_0_share * row_ns);
  stages[index_of(stage_kind::attn_1)].per_row = ns(attn_1_share * row_ns);
  stages[index_of(stage_kind::shared)].per_row = ns(shared_share * row_ns);
  stages[index_of(stage_kind::mlp)].per_row = ns(mlp_share * row_ns / 4);
  stages[index_of(stage_kind::head)].per_row = ns(0.01 * row_ns);
  options.device.stages = stages;
  // With four nodes a row goes over each link with probability 1 - (3/4)^4, and one of its four pairs comes
  // back; a pair takes 12 bytes both ways.
  const double row_bytes = 32 * 2;
  const double bytes_per_row = (1 - 81.0 / 256) * row_bytes + 12 + row_bytes + 12;
  options.link.latency = nanoseconds(1000);
  options.link.bytes_per_s = bytes_per_row / (wire_over_compute * row_ns) * 1e9;
  return options;
}

struct outcome {
  run_times times;
  double elapsed_ms = 0;
  double reached = 0;
  double rows_per_ms = 0;
};

outcome decode(const std::string& schedule_name, double ratio, uint32_t per_shard, const char* trace = nullptr) {
  simulated_cluster cluster(deep_model(), overlap_options(schedule_name, ratio, per_shard));
  REQUIRE(cluster.start());
  for (uint32_t i = 0; i < 4 * per_shard; ++i) {
    auto request = mixed_request(i, 200);
    request.ignore_eos = true;
    request.temperature = 1.5F;
    request.top_p = 1;
    request.prompt_ids.resize(4, 9);
    cluster.submit(request);
  }
  const auto tokens = [&] {
    uint64_t sum = 0;
    for (const auto& stream : cluster.streams()) sum += stream->tokens.size();
    return sum;
  };
  const auto run_to = [&](uint64_t count) {
    while (tokens() < count) cluster.run_for(milliseconds(5));
  };
  run_to(4 * per_shard * 6);
  if (trace != nullptr) REQUIRE(cluster.begin_timelines(trace));
  const auto before = cluster.times();
  const auto tokens_before = tokens();
  const auto begin = cluster.scheduler().time().now();
  run_to(tokens_before + 4 * per_shard * 40);
  const auto elapsed = std::chrono::duration<double, std::milli>(cluster.scheduler().time().now() - begin).count();
  const auto times = between(before, cluster.times());
  if (trace != nullptr) REQUIRE(cluster.end_timelines());
  if (std::getenv("TROUPE_LOADS")) {
    const auto board = cluster.board();
    for (size_t l = 1; l < layers; ++l) {
      std::string line;
      for (const auto& node : board.nodes) line += " " + std::to_string(node.layers[l].expert_rows);
      MESSAGE("layer " << l << line);
    }
  }
  return {times, elapsed, static_cast<double>(times.bound_ns()) * 1e-6 / elapsed,
          static_cast<double>(tokens() - tokens_before) / elapsed};
}

}  // namespace

TEST_CASE("explore") {
  const double ratio = std::atof(std::getenv("TROUPE_RATIO"));
  std::string list = std::getenv("TROUPE_LIST");
  std::stringstream lines(list);
  std::string line;
  while (std::getline(lines, line, ';')) {
    const bool split = line.find("attn_0") != std::string::npos;
    const auto o = decode("micro_batches: 2\nattention: " + std::string(split ? "split" : "whole") + "\nprefer: [" + line + "]\n", ratio, static_cast<uint32_t>(std::atoi(std::getenv("TROUPE_ROWS"))), std::getenv("TROUPE_TRACE"));
    MESSAGE(line << " " << ratio << ": elapsed " << o.elapsed_ms << " device " << o.times.device_ns * 1e-6 << " link "
                 << o.times.link_ns * 1e-6 << " chain " << o.times.chain_ns * 1e-6 << " reached " << o.reached
                 << " rows/ms " << o.rows_per_ms);
  }
}

}  // namespace troupe::testing
