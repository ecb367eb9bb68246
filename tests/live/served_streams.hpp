// Sixteen completions at a time of a served cluster, and what they gave.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/live/served_cluster.hpp"

namespace troupe::testing {

constexpr int streams = 16;

inline nlohmann::json completion(int i, int max_tokens) {
  static const char* prompts[] = {"In the beginning", "And Moses said unto", "The LORD is my", "And it came to pass",
                                  "Blessed are the",  "Then David arose",    "Woe unto",       "Behold, the days come"};
  return {{"prompt", std::string(prompts[i % 8]) + (i >= 8 ? " that" : "")},
          {"max_tokens", max_tokens},
          {"temperature", i % 2 == 0 ? 0.0 : 0.9},
          {"seed", 100 + i},
          {"logprobs", 1},
          {"ignore_eos", true}};
}

// What a completion gave: text and the log-probability of each token, compared for equality.
inline nlohmann::json outcome(const std::optional<http_answer>& answer) {
  if (!answer) return "no answer";
  const auto document = answer->json();
  if (answer->status != 200) return {{"status", answer->status}, {"error", document}};
  const auto& choice = document["choices"][0];
  return {{"text", choice["text"]}, {"logprobs", choice["logprobs"]["token_logprobs"]}};
}

inline std::vector<nlohmann::json> run_streams(const served_cluster& cluster, int max_tokens,
                                               const std::function<void()>& meanwhile = {}) {
  std::vector<nlohmann::json> outcomes(streams);
  std::vector<std::thread> clients;
  for (int i = 0; i < streams; ++i)
    clients.emplace_back([&, i] {
      outcomes[static_cast<size_t>(i)] =
          outcome(http_call(cluster.port(), "POST", "/v1/completions", completion(i, max_tokens).dump()));
    });
  if (meanwhile) meanwhile();
  for (auto& client : clients) client.join();
  return outcomes;
}

inline uint64_t completion_tokens(const served_cluster& cluster) {
  const auto document = cluster.cluster();
  return document.contains("requests") ? document["requests"]["completion_tokens"].get<uint64_t>() : 0;
}

}  // namespace troupe::testing
