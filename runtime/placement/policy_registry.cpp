#include "runtime/placement/policy_registry.hpp"

#include <algorithm>
#include <memory>

#include "runtime/nearest_name.hpp"
#include "runtime/placement/eplb.hpp"
#include "runtime/placement/incremental.hpp"
#include "runtime/placement/policy_json.hpp"
#include "runtime/placement/search.hpp"
#include "runtime/placement/simple_policies.hpp"

namespace troupe {

namespace {

policy_entry plain(std::string name, std::string about, placement_policy policy) {
  return {std::move(name), std::move(about),
          [policy = std::move(policy)](settings_text&) -> result<placement_policy> { return policy; }};
}

result<placement_policy> make_random(settings_text& settings) {
  uint64_t seed = 1;
  settings.take("seed", seed);
  return placement_policy([seed](const placement_input& input) { return place_at_random(input, seed); });
}

result<placement_policy> make_static(settings_text& settings) {
  std::string file;
  settings.take("file", file);
  if (file.empty()) return error{errc::invalid_argument, "static needs a map: static:file=MAP.json"};
  auto map = read_map(file);
  if (!map) return map.failure();
  return placement_policy([map = std::make_shared<expert_map>(std::move(*map))](const placement_input& input) {
    return place_as_given(input, *map);
  });
}

result<placement_policy> make_incremental(settings_text& settings) {
  incremental_settings chosen;
  settings.take("aim", chosen.aim);
  settings.take("worth", chosen.worth);
  settings.take("steps_max", chosen.steps_max);
  return placement_policy([chosen](const placement_input& input) { return place_incremental(input, chosen); });
}

result<placement_policy> make_search(settings_text& settings) {
  search_settings chosen;
  settings.take("trials", chosen.trials);
  settings.take("seed", chosen.seed);
  return placement_policy([chosen](const placement_input& input) { return place_by_search(input, chosen); });
}

}  // namespace

void policy_registry::add(policy_entry entry) {
  const auto same = std::find_if(entries_.begin(), entries_.end(),
                                 [&](const policy_entry& known) { return known.name == entry.name; });
  if (same != entries_.end())
    *same = std::move(entry);
  else
    entries_.push_back(std::move(entry));
}

result<placement_policy> policy_registry::make(const std::string& text) const {
  constexpr std::string_view program = "program:";
  if (text.starts_with(program)) {
    const auto command = text.substr(program.size());
    if (command.find_first_not_of(' ') == std::string::npos)
      return error{errc::invalid_argument, "program: needs a command, as in 'program:python3 my_policy.py'"};
    return program_policy(command, programs);
  }
  auto settings = settings_text::parse(text);
  if (!settings) return settings.failure();
  std::vector<std::string> names;
  for (const auto& entry : entries_) {
    names.push_back(entry.name);
    if (entry.name != settings->name()) continue;
    auto made = entry.make(*settings);
    if (!made) return made.failure();
    if (auto finished = settings->finish(); !finished) return finished.failure();
    return made;
  }
  std::string list;
  for (const auto& name : names) list += name + ", ";
  return error{errc::not_found, "there is no placement policy '" + settings->name() + "'; did you mean '" +
                                    nearest_name(settings->name(), names) + "'? There is: " + list +
                                    "and program:COMMAND"};
}

policy_registry shipped_policies() {
  policy_registry registry;
  registry.add(plain("linear", "blocks of experts, in order; looks at no load", place_in_blocks));
  registry.add(plain("round_robin", "experts dealt one by one; looks at no load", place_round_robin));
  registry.add({"random", "seed=1: anywhere; looks at no load", make_random});
  registry.add({"static", "file=MAP.json: a map that was given", make_static});
  registry.add(plain("eplb", "DeepSeek's EPLB", place_eplb));
  registry.add(plain("eplb_distinct", "EPLB without two replicas of an expert on one device", place_eplb_distinct));
  registry.add(
      {"incremental", "aim=0.4,worth=0.025,steps_max=1000: few moves, from the current map", make_incremental});
  registry.add({"search", "trials=1000,seed=1: a better balance than EPLB's, slowly", make_search});
  return registry;
}

}  // namespace troupe
