// Placement policies by name: those that come with Troupe, and those that one adds.
//
// A registry is a value: whoever wants policies of his own makes one, adds them and passes it on
// (examples/policy shows how). Not changed while others read it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/placement/policy.hpp"
#include "runtime/placement/policy_program.hpp"
#include "runtime/placement/settings_text.hpp"

namespace troupe {

struct policy_entry {
  std::string name;
  std::string about;  // for help: its settings with their defaults, and a sentence
  // Takes its settings from the text. Fails: invalid_argument or not_found, with a sentence.
  std::function<result<placement_policy>(settings_text&)> make;
};

class policy_registry {
 public:
  // Replaces one of the same name.
  void add(policy_entry entry);

  // From `NAME`, `NAME:key=value,...` or `program:COMMAND`. Fails: not_found with the names that there are.
  result<placement_policy> make(const std::string& text) const;

  const std::vector<policy_entry>& entries() const { return entries_; }
  program_limits programs;  // of what `program:` starts

 private:
  std::vector<policy_entry> entries_;
};

// linear, round_robin, random, static, eplb, eplb_distinct, incremental, search.
policy_registry shipped_policies();

}  // namespace troupe
