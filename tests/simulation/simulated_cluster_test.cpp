#include <doctest/doctest.h>

#include "tests/simulation/simulation_fixtures.hpp"

namespace troupe::testing {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_CASE("a simulated cluster continues T1 as the published code does") {
  for (const uint32_t nodes : {1U, 2U, 4U}) {
    CAPTURE(nodes);
    simulated_cluster cluster(t1_model(), t1_options(nodes));
    REQUIRE(cluster.start());
    generation_request request;
    request.prompt_ids = {3, 17, 42, 5, 60, 8, 29, 11};
    request.max_tokens = 8;
    request.temperature = 0;
    const auto& stream = cluster.submit(request);
    REQUIRE(cluster.run_until([&] { return stream.ended; }, seconds(10)));
    CHECK(!stream.failure);
    CHECK(stream.tokens == std::vector<int32_t>{36, 25, 59, 42, 51, 59, 55, 63});
  }
}

TEST_CASE("tokens and log-probabilities do not depend on nodes, strangers, chunks, micro-batches or shards") {
  struct variant {
    uint32_t nodes, chunk, micro_batches, shards, requests;
  };
  const variant variants[] = {{1, 512, 1, 1, 1}, {1, 1, 2, 1, 33},   {2, 16, 1, 1, 33}, {4, 1, 1, 1, 8},
                              {4, 16, 2, 1, 33}, {4, 512, 2, 2, 33}, {2, 16, 4, 2, 12}, {7, 16, 2, 1, 20}};
  for (const auto& v : variants) {
    CAPTURE(v.nodes);
    CAPTURE(v.chunk);
    CAPTURE(v.micro_batches);
    CAPTURE(v.shards);
    auto options = t1_options(v.nodes);
    options.settings.chunk = v.chunk;
    options.settings.schedule = taking_turns(v.micro_batches);
    options.settings.shards_per_node = v.shards;
    options.settings.rows_max = 512;
    simulated_cluster cluster(t1_model(), options);
    REQUIRE(cluster.start());
    for (uint32_t i = 0; i < v.requests; ++i) cluster.submit(mixed_request(i));
    REQUIRE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(60)));
    for (uint32_t i = 0; i < v.requests; ++i) {
      CAPTURE(i);
      CHECK(result_of(*cluster.streams()[i]) == alone(i));
    }
  }
}

TEST_CASE("tokens and log-probabilities do not depend on the schedule, nor on where a prompt is split") {
  const std::string names[] = {"serial", "dual_prefill", "dual_decode", "auto"};
  for (const auto& name : names)
    for (const uint32_t requests : {1U, 24U}) {
      CAPTURE(name);
      CAPTURE(requests);
      auto options = t1_options(4);
      options.settings.schedule = *find_schedule(name, ".");
      options.settings.schedule.probe_steps = 1;  // every choice of `auto` is tried
      options.settings.chunk = 512;
      simulated_cluster cluster(t1_model(), options);
      REQUIRE(cluster.start());
      for (uint32_t i = 0; i < requests; ++i) cluster.submit(mixed_request(i));
      REQUIRE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(60)));
      for (uint32_t i = 0; i < requests; ++i) {
        CAPTURE(i);
        CHECK(result_of(*cluster.streams()[i]) == alone(i));
      }
    }
}

TEST_CASE("with dispatch in FP8 tokens and log-probabilities are equal on every layout, local experts included") {
  const auto run = [&](uint32_t nodes, uint32_t chunk, const std::string& cut, uint32_t requests, wire_dtype dispatch) {
    auto options = t1_options(nodes);
    options.settings.dispatch = dispatch;
    options.settings.combine = wire_dtype::bf16;
    options.settings.chunk = chunk;
    options.settings.schedule = *find_schedule(cut, ".");
    simulated_cluster cluster(t1_model(), options);
    REQUIRE(cluster.start());
    for (uint32_t i = 0; i < requests; ++i) cluster.submit(mixed_request(i));
    REQUIRE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(60)));
    std::vector<stream_result> results;
    for (const auto& stream : cluster.streams()) results.push_back(result_of(*stream));
    return results;
  };
  const auto reference = run(1, 16, "serial", 24, wire_dtype::fp8);
  CHECK(run(1, 512, "dual_prefill", 24, wire_dtype::fp8) == reference);
  CHECK(run(4, 1, "dual_decode", 24, wire_dtype::fp8) == reference);
  CHECK(run(7, 64, "auto", 24, wire_dtype::fp8) == reference);
  const auto few = run(4, 16, "dual_decode", 3, wire_dtype::fp8);
  CHECK(std::equal(few.begin(), few.end(), reference.begin()));
  // It is another precision than BF16, and close to it.
  const auto bf16 = run(1, 16, "serial", 24, wire_dtype::bf16);
  CHECK(bf16 != reference);
  for (size_t i = 0; i < reference.size(); ++i)
    CHECK(std::abs(reference[i].logprobs.front() - bf16[i].logprobs.front()) < 0.2F);
}

TEST_CASE("profile amx_bf16 gives the same bits on every layout of the cluster too") {
  if (!kernels::cpu_features::detect().amx_bf16()) {
    MESSAGE("skipped: this CPU cannot run profile amx_bf16");
    return;
  }
  temporary_directory directory;
  write_t1_model(directory.path());
  const auto model = *simulated_model::load(directory.path(), kernels::compute::make(kernels::profile::amx_bf16));
  const auto run = [&](uint32_t nodes, uint32_t chunk, uint32_t micro_batches, uint32_t requests) {
    auto options = t1_options(nodes);
    options.settings.profile = kernels::profile::amx_bf16;
    options.settings.dispatch = options.settings.combine = wire_dtype::bf16;
    options.settings.chunk = chunk;
    options.settings.schedule = taking_turns(micro_batches);
    simulated_cluster cluster(model, options);
    REQUIRE(cluster.start());
    for (uint32_t i = 0; i < requests; ++i) cluster.submit(mixed_request(i));
    REQUIRE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(60)));
    std::vector<stream_result> results;
    for (const auto& stream : cluster.streams()) results.push_back(result_of(*stream));
    return results;
  };
  const auto reference = run(1, 16, 1, 33);
  CHECK(run(2, 1, 2, 33) == reference);
  CHECK(run(4, 64, 2, 33) == reference);
  const auto few = run(4, 16, 1, 3);
  CHECK(std::equal(few.begin(), few.end(), reference.begin()));
}

TEST_CASE("the same seed gives the same history, and another seed the same tokens") {
  const auto history = [](uint64_t seed) {
    auto options = t1_options(4);
    options.seed = seed;
    simulated_cluster cluster(t1_model(), options);
    cluster.start();
    for (uint32_t i = 0; i < 8; ++i) cluster.submit(mixed_request(i));
    cluster.run_until([&] { return cluster.all_ended(); }, seconds(60));
    std::vector<stream_result> streams;
    for (const auto& stream : cluster.streams()) streams.push_back(result_of(*stream));
    return std::tuple(cluster.scheduler().messages_run(), cluster.scheduler().time().now(), streams);
  };
  const auto first = history(3);
  CHECK(history(3) == first);
  CHECK(std::get<2>(history(4)) == std::get<2>(first));
}

TEST_CASE("a cancelled request ends, and its KV blocks are free again") {
  simulated_cluster cluster(t1_model(), t1_options(2));
  REQUIRE(cluster.start());
  const auto& stream = cluster.submit(mixed_request(4, 200));
  REQUIRE(cluster.run_until([&] { return stream.tokens.size() >= 5; }, seconds(10)));
  cluster.cancel(0);
  REQUIRE(cluster.run_until([&] { return stream.ended; }, seconds(1)));
  CHECK(stream.reason == finish_reason::cancelled);
  cluster.run_for(milliseconds(500));
  for (const auto& node : cluster.board().nodes) {
    CHECK(node.counters.sequences == 0);
    CHECK(node.counters.kv_blocks_free == node.counters.kv_blocks);
  }
}

TEST_CASE("requests beyond the KV cache wait in order and complete") {
  auto options = t1_options(1);
  options.settings.kv_blocks = 8;
  simulated_cluster cluster(t1_model(), options);
  REQUIRE(cluster.start());
  for (uint32_t i = 0; i < 24; ++i) cluster.submit(mixed_request(i));
  REQUIRE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(60)));
  for (uint32_t i = 0; i < 24; ++i) CHECK(result_of(*cluster.streams()[i]) == alone(i));
}

TEST_CASE("a cluster without requests handles nothing but heartbeats, and has told all that it did") {
  auto options = t1_options(2);
  simulated_cluster cluster(t1_model(), options);
  REQUIRE(cluster.start());
  for (const bool again : {false, true}) {
    CAPTURE(again);
    const uint32_t first = again ? 8 : 0;
    for (uint32_t i = first; i < first + 8; ++i) cluster.submit(mixed_request(i));
    REQUIRE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(60)));
    cluster.run_for(seconds(1));
    const auto before = cluster.scheduler().messages_run();
    constexpr uint64_t heartbeats = 50;
    cluster.run_for(heartbeats * milliseconds(options.settings.heartbeat_ms));
    // A node's tick and its heartbeat's arrival, the coordinator's tick and the balancer's; with loads now and then.
    CHECK(cluster.scheduler().messages_run() - before <= heartbeats * (2 * 2 + 2 + 1));
    uint64_t told = 0, emitted = 0, rows = 0;
    for (const auto& node : cluster.board().nodes) {
      told += node.counters.tokens;
      rows += node.counters.rows_received;
    }
    for (uint32_t i = 0; i < first + 8; ++i) {
      emitted += cluster.streams()[i]->tokens.size();
      CHECK(result_of(*cluster.streams()[i]) == alone(i));
    }
    CHECK(told == emitted);
    CHECK(rows > 0);
  }
}

TEST_CASE("a request that can never fit is refused with a sentence") {
  auto options = t1_options(1);
  options.settings.kv_blocks = 2;
  simulated_cluster cluster(t1_model(), options);
  REQUIRE(cluster.start());
  generation_request request = mixed_request(1, 4000);
  const auto& stream = cluster.submit(request);
  REQUIRE(cluster.run_until([&] { return stream.ended; }, seconds(1)));
  REQUIRE(stream.failure);
  CHECK(stream.failure->code == errc::invalid_argument);
  CHECK(stream.failure->message.find("positions") != std::string::npos);
}

}  // namespace troupe::testing
