// How much of the wire's time schedules hide, measured against the run's own bound in virtual time.
#include <doctest/doctest.h>

#include <cstdlib>

#include "tests/simulation/simulation_fixtures.hpp"

namespace troupe::testing {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

namespace {

constexpr int layers = 24;
constexpr int experts = 32;
constexpr int top_k = 4;
constexpr uint32_t nodes = 4;
constexpr double row_ns = 4000;

std::shared_ptr<simulated_model> deep_model() {
  static const std::shared_ptr<simulated_model> model = [] {
    spdlog::set_level(spdlog::level::err);
    temporary_directory directory;
    auto config = t1_config();
    config["num_hidden_layers"] = layers;
    config["first_k_dense_replace"] = 0;
    config["n_routed_experts"] = experts;
    config["num_experts_per_tok"] = top_k;
    config["n_group"] = config["topk_group"] = 1;
    const size_t hidden = config["hidden_size"];
    // Every node's experts have the same tastes, so that a row wants one expert of each node: all devices
    // and links are loaded alike, and what is measured is the schedule.
    write_model(directory.path(), config, [&](const std::string& name, size_t i) {
      if (name.ends_with("e_score_correction_bias")) return 0.0F;
      return t0_value(name, name.ends_with("mlp.gate.weight") ? i % (experts / nodes * hidden) : i);
    });
    return *simulated_model::load(directory.path(), kernels::compute::make(kernels::profile::f32));
  }();
  return model;
}

schedule shipped(const std::string& name) { return name.size() > 20 ? *parse_schedule(name) : *find_schedule(name, "."); }

// Shares of a micro-batch's compute in a layer.
const double attn_0_share = std::atof(getenv("SH_A0")), attn_1_share = std::atof(getenv("SH_A1")), shared_share = std::atof(getenv("SH_S")), mlp_share = std::atof(getenv("SH_M"));

simulation_options overlap_options(const std::string& schedule_name, double wire_over_compute, uint32_t sequences) {
  auto options = t1_options(4);
  auto& settings = options.settings;
  settings.schedule = shipped(schedule_name);
  settings.redundant_replicas = 0;
  settings.kv_blocks = 4096;
  settings.sequences_max = 1024;
  settings.rows_max = 256;
  settings.chunk = 512;
  settings.heartbeat_ms = 5;
  settings.verdict_ms = 60000;
  settings.dispatch_deadline_ms = 60000;
  settings.dispatch = settings.combine = wire_dtype::bf16;
  (void)sequences;
  const auto ns = [](double value) { return nanoseconds(static_cast<int64_t>(value)); };
  std::array<stage_cost, stage_kind_count> stages{};
  stages[index_of(stage_kind::attn)].per_row = ns((attn_0_share + attn_1_share) * row_ns);
  stages[index_of(stage_kind::attn_0)].per_row = ns(attn_0_share * row_ns);
  stages[index_of(stage_kind::attn_1)].per_row = ns(attn_1_share * row_ns);
  stages[index_of(stage_kind::shared)].per_row = ns(shared_share * row_ns);
  stages[index_of(stage_kind::mlp)].per_row = ns(mlp_share * row_ns / top_k);
  stages[index_of(stage_kind::head)].per_row = ns(0.01 * row_ns);
  options.device.stages = stages;
  // With four nodes a row goes over each link with probability 1 - (3/4)^4, and one of its four pairs comes
  // back; a pair takes 12 bytes both ways.
  const double row_bytes = 32 * 2;
  const double bytes_per_row = 2 * (row_bytes + 12);
  options.link.latency = nanoseconds(1000);
  options.link.bytes_per_s = bytes_per_row / (wire_over_compute * row_ns) * 1e9;
  return options;
}

struct outcome {
  run_times times;
  double elapsed_ms = 0;
  double fill_ms = 0;
  double reached = 0;
};

// One pass of `rows` rows a shard through all layers, all shards at the same moment.
outcome pass(const std::string& schedule_name, double ratio, uint32_t prompts, uint32_t prompt_tokens,
             const char* trace = nullptr) {
  auto options = overlap_options(schedule_name, ratio, prompts);
  simulated_cluster cluster(deep_model(), options);
  REQUIRE(cluster.start());
  cluster.run_for(milliseconds(20));
  for (uint16_t node = 0; node < 4; ++node) cluster.pause(node);
  for (uint32_t i = 0; i < 4 * prompts; ++i) {
    auto request = mixed_request(i, 1);
    request.ignore_eos = true;
    request.prompt_ids.resize(prompt_tokens, 9);
    for (uint32_t j = 0; j < prompt_tokens; ++j) request.prompt_ids[j] = static_cast<int32_t>(2 + (i * 31 + j * 17) % 62);
    cluster.submit(request);
  }
  cluster.run_for(milliseconds(2));
  if (trace != nullptr) REQUIRE(cluster.begin_timelines(trace));
  const auto before = cluster.times();
  const auto begin = cluster.scheduler().time().now();
  for (uint16_t node = 0; node < 4; ++node) cluster.resume(node);
  uint64_t until = 0;
  REQUIRE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(100)));
  (void)until;
  const auto elapsed = std::chrono::duration<double, std::milli>(cluster.scheduler().time().now() - begin - options.control_latency).count();
  cluster.run_for(milliseconds(20));
  const auto times = between(before, cluster.times());
  if (trace != nullptr) REQUIRE(cluster.end_timelines());
  const uint32_t part = prompts * prompt_tokens / options.settings.schedule.micro_batches_max();
  const double fill = part * row_ns * (attn_0_share + attn_1_share) * 1e-6 +
                      part * 76 / options.link.bytes_per_s * 1e3;
  return {times, elapsed, fill, static_cast<double>(times.bound_ns()) * 1e-6 / (elapsed - fill)};
}

// Decoding of `sequences` sequences a shard in the steady state.
outcome steady(const std::string& schedule_name, double ratio, uint32_t sequences) {
  auto options = overlap_options(schedule_name, ratio, sequences);
  simulated_cluster cluster(deep_model(), options);
  REQUIRE(cluster.start());
  for (uint32_t i = 0; i < nodes * sequences; ++i) {
    auto request = mixed_request(i, 60);
    request.ignore_eos = true;
    request.prompt_ids.resize(1, 9);
    cluster.submit(request);
  }
  const auto tokens = [&] {
    uint64_t sum = 0;
    for (const auto& stream : cluster.streams()) sum += stream->tokens.size();
    return sum;
  };
  const auto run_to = [&](uint64_t count) {
    while (tokens() < count) cluster.run_for(milliseconds(1));
  };
  run_to(nodes * sequences * 6);
  const auto before = cluster.times();
  const auto begin = cluster.scheduler().time().now();
  run_to(nodes * sequences * 14);
  const auto elapsed = std::chrono::duration<double, std::milli>(cluster.scheduler().time().now() - begin).count();
  const auto times = between(before, cluster.times());
  return {times, elapsed, 0, static_cast<double>(times.bound_ns()) * 1e-6 / elapsed};
}

}  // namespace

TEST_CASE("explore") {
  const double ratio = std::atof(std::getenv("TROUPE_RATIO"));
  std::string list = std::getenv("TROUPE_LIST");
  std::stringstream lines(list);
  std::string line;
  while (std::getline(lines, line, ';')) {
    const bool split = line.find("attn_0") != std::string::npos;
    const auto o = std::getenv("STEADY") ? steady("micro_batches: 2\nattention: " + std::string(split ? "split" : "whole") + "\nprefer: [" + line + "]\n", ratio, 256) : pass("micro_batches: 2\nattention: " + std::string(split ? "split" : "whole") + "\nprefer: [" + line + "]\n", ratio, static_cast<uint32_t>(std::atoi(std::getenv("TROUPE_ROWS"))), 512, std::getenv("TROUPE_TRACE"));
    MESSAGE(line << " " << ratio << ": elapsed " << o.elapsed_ms << " device " << o.times.device_ns * 1e-6 << " link "
                 << o.times.link_ns * 1e-6 << " chain " << o.times.chain_ns * 1e-6 << " reached " << o.reached
                 << " fill " << o.fill_ms);
  }
}

}  // namespace troupe::testing
