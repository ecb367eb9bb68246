// What `troupe place` prints of the policies it has judged: a table, JSON or CSV (docs/policies.md). Pure, any thread.
#pragma once

#include <span>
#include <string>

#include "runtime/placement/evaluation.hpp"

namespace troupe {

struct place_subject {
  std::string load;
  std::string topology;
  uint32_t layers = 0;
  uint32_t experts = 0;
  uint64_t slots = 0;  // of a layer
  size_t devices = 0;
  size_t windows = 0;
  std::string selection;
};

std::string place_table(const place_subject& subject, std::span<const evaluation> judged);
std::string place_json(const place_subject& subject, std::span<const evaluation> judged);
// A line for each policy and plan.
std::string place_csv(std::span<const evaluation> judged);

}  // namespace troupe
