// What the simulation tests share: the T1 model, loaded once, and mixed requests with known answers.
#pragma once

#include <spdlog/spdlog.h>

#include <map>
#include <memory>
#include <random>
#include <vector>

#include "apps/cluster/simulated_cluster.hpp"
#include "tests/small_model.hpp"

namespace troupe::testing {

inline std::shared_ptr<simulated_model> t1_model() {
  static const std::shared_ptr<simulated_model> model = [] {
    spdlog::set_level(spdlog::level::err);
    temporary_directory directory;
    write_t1_model(directory.path());
    return *simulated_model::load(directory.path(), kernels::compute::make(kernels::profile::f32));
  }();
  return model;
}

inline simulation_options t1_options(uint32_t nodes) {
  simulation_options options;
  options.settings.nodes = nodes;
  options.settings.kv_blocks = 128;
  options.settings.rows_max = 64;
  options.settings.chunk = 16;
  return options;
}

// Request number `i` of a fixed, mixed set: prompts of 1 to 60 tokens, greedy and sampled.
inline generation_request mixed_request(uint32_t i, uint32_t max_tokens = 12) {
  std::mt19937_64 draw(1000 + i);
  generation_request request;
  const uint64_t length = 1 + draw() % 60;
  for (uint64_t j = 0; j < length; ++j) request.prompt_ids.push_back(static_cast<int32_t>(2 + draw() % 62));
  request.max_tokens = max_tokens;
  request.ignore_eos = i % 3 != 0;
  request.temperature = i % 2 == 0 ? 0.0F : 0.9F;
  request.top_p = i % 4 == 1 ? 0.8F : 1.0F;
  request.seed = 77 + i;
  return request;
}

struct stream_result {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;  // compared for equality, not closeness
  bool operator==(const stream_result&) const = default;
};

inline stream_result result_of(const simulated_stream& stream) { return {stream.tokens, stream.logprobs}; }

// Each request alone on one node, one micro-batch: what every other run must equal.
inline const stream_result& alone(uint32_t i, uint32_t max_tokens = 12) {
  static std::map<std::pair<uint32_t, uint32_t>, stream_result> known;
  const std::pair key{i, max_tokens};
  if (const auto at = known.find(key); at != known.end()) return at->second;
  auto options = t1_options(1);
  options.settings.schedule = taking_turns(1);
  simulated_cluster cluster(t1_model(), options);
  cluster.start();
  const auto& stream = cluster.submit(mixed_request(i, max_tokens));
  cluster.run_until([&] { return stream.ended; }, std::chrono::seconds(60));
  return known[key] = result_of(stream);
}

}  // namespace troupe::testing
