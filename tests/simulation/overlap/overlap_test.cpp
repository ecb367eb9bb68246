// How much of the wire's time schedules hide, measured exactly against the run's own bound in virtual time.
//
// The device's stages and the links have stated costs; the arithmetic is real. Every device and link is
// loaded alike, so that what is measured is the schedule.
#include <doctest/doctest.h>

#include <array>
#include <fstream>
#include <map>
#include <set>

#include "tests/simulation/simulation_fixtures.hpp"

namespace troupe::testing {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

namespace {

// A sanitizer looks for errors of memory, which a part of the runs shows as well as all; they take ten times as
// long there.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::array wire_over_compute{1.0};
constexpr uint32_t batch_step = 64;
#else
constexpr std::array wire_over_compute{0.5, 1.0, 2.0};
constexpr uint32_t batch_step = 2;
#endif

constexpr uint32_t nodes = 4;
constexpr uint32_t experts = 32;
constexpr uint32_t top_k = 4;
constexpr uint32_t hidden = 32;
constexpr double row_ns = 4000;  // compute of a row in a layer
// Its shares.
struct compute_shares {
  double attn_0, attn_1, shared, mlp;
};
constexpr compute_shares even{0.15, 0.25, 0.05, 0.55};
constexpr compute_shares attention_heavy{0.3, 0.4, 0.1, 0.2};

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

// `ratio`: what a micro-batch's dispatch and combine take on an idle link, over what its
// stages take.
simulation_options overlap_options(const schedule& cut, double ratio, const compute_shares& shares = even) {
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
  stages[index_of(stage_kind::attn)].per_row = ns((shares.attn_0 + shares.attn_1) * row_ns);
  stages[index_of(stage_kind::attn_0)].per_row = ns(shares.attn_0 * row_ns);
  stages[index_of(stage_kind::attn_1)].per_row = ns(shares.attn_1 * row_ns);
  stages[index_of(stage_kind::shared)].per_row = ns(shares.shared * row_ns);
  stages[index_of(stage_kind::mlp)].per_row = ns(shares.mlp * row_ns / top_k);
  stages[index_of(stage_kind::head)].per_row = ns(0.01 * row_ns);
  options.device.stages = stages;
  // Over each link goes every row once, with one pair's entry, and one output comes back.
  const double bytes_per_row = 2 * (hidden * 2 + 12);
  options.link.latency = nanoseconds(1000);
  options.link.bytes_per_s = bytes_per_row / (ratio * row_ns) * 1e9;
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
  return {between(before, cluster.times()), elapsed, static_cast<double>(tokens_of(cluster) - tokens_before) / elapsed};
}

// Prompts, all submitted at once. The fill is left out: the first attention stage, and the last combine.
outcome prefill(simulation_options options, uint32_t prompts, uint32_t prompt_tokens,
                const std::filesystem::path& timeline_file = {}) {
  options.control_latency = nanoseconds(0);  // all shards begin at one moment
  simulated_cluster cluster(deep_model(), options);
  REQUIRE(cluster.start());
  cluster.run_for(milliseconds(20));
  if (!timeline_file.empty()) REQUIRE(cluster.begin_timelines(timeline_file));
  const auto before = cluster.times();
  const auto begin = cluster.scheduler().time().now();
  for (uint32_t i = 0; i < nodes * prompts; ++i) {
    auto request = mixed_request(i, 1);
    request.ignore_eos = true;
    request.prompt_ids.resize(prompt_tokens);
    for (uint32_t j = 0; j < prompt_tokens; ++j)
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
  const double fill =
      part * row_ns * (even.attn_0 + even.attn_1) * 1e-6 + part * (hidden * 2 + 12) / options.link.bytes_per_s * 1e3;
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
  for (const double ratio : wire_over_compute) {
    const auto dual = decode(deep_model(), overlap_options(shipped("dual_decode"), ratio), 256, 6, 8);
    print("dual_decode", ratio, dual);
    CHECK(dual.reached() >= 0.95);
    const auto serial = decode(deep_model(), overlap_options(shipped("serial"), ratio), 256, 6, 8);
    print("serial     ", ratio, serial);
    CHECK(dual.tokens_per_ms > 1.2 * serial.tokens_per_ms);
  }
}

TEST_CASE("dual_prefill reaches 95 % of its bound when the wire takes 0.5, 1 and 2 times as long as compute") {
  for (const double ratio : wire_over_compute) {
    const auto dual = prefill(overlap_options(shipped("dual_prefill"), ratio), 10, 512);
    print("dual_prefill", ratio, dual);
    CHECK(dual.reached() >= 0.95);
    const auto serial = prefill(overlap_options(shipped("serial"), ratio), 2, 512);
    print("serial      ", ratio, serial);
    CHECK(dual.tokens_per_ms > 1.2 * serial.tokens_per_ms);
  }
}

TEST_CASE("dual_prefill reaches 95 % of its bound too when whole prompts cannot be dealt out evenly") {
  // The first to arrive is shared at once; three are left for two micro-batches.
  auto options = overlap_options(shipped("dual_prefill"), 1.0);
  options.settings.rows_max = 512;
  const auto dual = prefill(options, 4, 512);
  print("dual_prefill", 1.0, dual);
  CHECK(dual.reached() >= 0.95);
}

namespace {

// Stages of node 0's device in the order of time, "MLP1" and so on, launches of one stage taken together.
std::vector<std::string> stages_of(const std::filesystem::path& timeline_file) {
  std::ifstream stream(timeline_file);
  std::map<double, std::string> by_time;
  for (const auto& event : nlohmann::json::parse(stream))
    if (event.value("cat", "") == "stage" && event["pid"] == 0)
      by_time[event["ts"]] =
          event["name"].get<std::string>() + "." + std::to_string(event["args"]["micro_batch"].get<int>());
  std::vector<std::string> stages;
  for (const auto& [time, stage] : by_time)
    if (stages.empty() || stages.back() != stage) stages.push_back(stage);
  return stages;
}

// Whether the middle of a pass repeats `cycle`.
void check_cycle(const std::vector<std::string>& stages, const std::vector<std::string>& cycle) {
  REQUIRE(stages.size() > 10 * cycle.size());
  size_t at = stages.size() / 4;
  while (at < stages.size() && stages[at] != cycle.front()) ++at;
  for (size_t i = 0; i < stages.size() / 2; ++i) {
    CAPTURE(i);
    REQUIRE(stages[at + i] == cycle[i % cycle.size()]);
  }
}

}  // namespace

TEST_CASE("stages follow each other as in the published figures") {
  const temporary_directory directory;
  const auto file = directory.path() / "timeline.json";
  // Which of the two micro-batches leads is a matter of the start; here it is the one numbered 0.
  REQUIRE(prefill(overlap_options(shipped("dual_prefill"), 0.5), 1, 384, file).elapsed_ms > 0);
  check_cycle(stages_of(file), {"ATTN.0", "SHARED.1", "ATTN.1", "MLP.0", "MLP.1", "SHARED.0"});
  REQUIRE(prefill(overlap_options(shipped("dual_decode"), 0.5, attention_heavy), 1, 384, file).elapsed_ms > 0);
  check_cycle(stages_of(file),
              {"SHARED.0", "ATTN-0.1", "MLP.0", "ATTN-1.1", "SHARED.1", "ATTN-0.0", "MLP.1", "ATTN-1.0"});
}

TEST_CASE("a timeline holds every stage, and every transfer as a flow from send to delivery") {
  const temporary_directory directory;
  const auto file = directory.path() / "timeline.json";
  prefill(overlap_options(shipped("dual_decode"), 1.0), 1, 384, file);
  std::ifstream stream(file);
  const auto events = nlohmann::json::parse(stream);
  std::map<std::string, int> count;
  std::map<std::string, double> sent, delivered;
  for (const auto& event : events) {
    ++count[event["name"]];
    if (event.value("cat", "") == "flow") {
      auto& ends = event["ph"] == "s" ? sent : delivered;
      CHECK(ends.emplace(event["id"], event["ts"]).second);  // ids are used once
    }
  }
  CHECK(sent.size() == delivered.size());
  for (const auto& [id, time] : sent) {
    REQUIRE(delivered.contains(id));
    CHECK(delivered[id] >= time);
  }
  // Two micro-batches of four shards in 24 layers, each to four devices and back.
  CHECK(sent.size() == 2 * 4 * 24 * 4 * 2);
  for (const char* stage : {"ATTN-0", "ATTN-1", "SHARED"}) CHECK(count[stage] == 2 * 4 * 24);
  CHECK(count["MLP"] >= 2 * 4 * 24 / 4);
  CHECK(count["HEAD"] == 2 * 4);
  CHECK(count["WAIT"] > 0);
}

TEST_CASE("devices wait for rows that are on their way, so that shards meet and weights are read once in a step") {
  constexpr int layers = 8;
  auto options = overlap_options(taking_turns(1), 1.0);
  // Reading weights is what costs, and a device has its own shard's rows long before the others'.
  std::array<stage_cost, stage_kind_count> stages{};
  for (auto& stage : stages) stage.fixed = nanoseconds(20'000);
  stages[index_of(stage_kind::mlp)].per_pass = nanoseconds(20'000);
  options.device.stages = stages;
  options.link.latency = nanoseconds(100'000);
  options.link.bytes_per_s = 1e9;
  simulated_cluster cluster(balanced_model(layers), options);
  REQUIRE(cluster.start());
  for (uint32_t i = 0; i < 64 * nodes; ++i) {
    auto request = mixed_request(i, 400);
    request.ignore_eos = true;
    request.prompt_ids.resize(1 + i % 40, 9);  // so that the shards begin to decode at different times
    cluster.submit(request);
  }
  while (tokens_of(cluster) < 64 * nodes * 20) REQUIRE(cluster.run_for(milliseconds(1)));
  uint64_t shard_layers = 0;
  cluster.network().observe([&](const micro_batch_header& header, const endpoint& to) {
    if (header.kind == message_kind::dispatch && to.node == header.source_node) ++shard_layers;
  });
  const uint64_t before = cluster.device_totals().weight_passes;
  cluster.run_for(milliseconds(100));
  const double passes = static_cast<double>(cluster.device_totals().weight_passes - before) /
                        (static_cast<double>(shard_layers) / nodes * experts);
  MESSAGE(passes << " weight passes for each expert, layer and step");
  REQUIRE(shard_layers > 100);
  CHECK(passes <= 1.05);
}

TEST_CASE("auto is within 3 % of the best fixed choice, from one sequence to 256") {
  // Every stage has a price of its own, so that cutting a small batch loses.
  static const auto model = balanced_model(6);
  const auto cost = [](const schedule& cut) {
    auto options = overlap_options(cut, 1.0);
    auto& stages = *options.device.stages;
    for (const auto kind : {stage_kind::attn, stage_kind::attn_0, stage_kind::attn_1})
      stages[index_of(kind)].fixed = nanoseconds(40'000);
    stages[index_of(stage_kind::shared)].fixed = nanoseconds(10'000);
    options.link.latency = nanoseconds(5'000);
    options.settings.nodes = 2;
    options.control_latency = nanoseconds(0);
    return options;
  };
  const auto choosing = shipped("auto");
  std::set<uint32_t> best_parts;
  for (uint32_t sequences = 1; sequences <= 256; sequences *= batch_step) {
    double best = 0;
    schedule_choice best_choice;
    for (const auto& choice : choosing.choices) {
      auto fixed = choosing;
      fixed.choices = {choice};
      const auto run = decode(model, cost(fixed), sequences, 90, 30);
      if (run.tokens_per_ms <= best) continue;
      best = run.tokens_per_ms;
      best_choice = choice;
    }
    const auto run = decode(model, cost(choosing), sequences, 90, 30);
    MESSAGE(sequences << " sequences a shard: best with " << best_choice.micro_batches
                      << (best_choice.split_attention ? " split: " : " whole: ") << best << " tokens/ms, auto "
                      << run.tokens_per_ms << " (" << 100 * run.tokens_per_ms / best << " %)");
    CHECK(run.tokens_per_ms >= 0.97 * best);
    best_parts.insert(best_choice.micro_batches);
  }
  if (batch_step == 2) CHECK(best_parts.size() > 1);  // else there was nothing to choose
}

}  // namespace troupe::testing
