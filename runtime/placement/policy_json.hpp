// The JSON of placement: what a policy program reads and writes, and maps in files.
//
// docs/policies.md describes it; examples/policy/policy.schema.json is its schema. Nothing that was read is
// trusted: sizes and numbers are checked before they are used. Any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>

#include "runtime/placement/policy.hpp"

namespace troupe {

// One line, without the newline at its end.
std::string to_json_line(const placement_input& input);

// A policy program's answer. Fails: malformed, with the place in the answer; or what the program itself said.
result<placement_proposal> parse_answer(const std::string& line, uint32_t layers, uint32_t experts);

// Maps in files: {"layers", "experts", "map": [layer][expert][replica]}, a device each.
std::string to_json_line(const expert_map& map);
result<expert_map> read_map(const std::string& path);

}  // namespace troupe
