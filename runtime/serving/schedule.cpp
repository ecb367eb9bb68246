#include "runtime/serving/schedule.hpp"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>

#include "runtime/key_table.hpp"

namespace troupe {

namespace {

constexpr std::pair<std::string_view, stage_kind> preferences[] = {
    {"attn", stage_kind::attn},     {"attn_0", stage_kind::attn_0}, {"attn_1", stage_kind::attn_1},
    {"shared", stage_kind::shared}, {"mlp", stage_kind::mlp},
};

error impossible(std::string why) { return {errc::invalid_argument, std::move(why)}; }

bool split_from(const std::string& text) {
  if (text == "split") return true;
  if (text == "whole") return false;
  throw impossible("`attention` is '" + text + "'; it may be whole (one stage) or split (attn_0, attn_1)");
}

schedule_choice read_choice(const YAML::Node& node) {
  schedule_choice choice;
  bool says_how_many = false;
  key_table keys;
  keys.add("micro_batches", [&](const YAML::Node& value) {
    choice.micro_batches = value.as<uint32_t>();
    says_how_many = true;
  });
  keys.add("attention", [&](const YAML::Node& value) { choice.split_attention = split_from(value.as<std::string>()); });
  if (auto read = keys.read(node); !read) throw read.failure();
  if (!says_how_many) throw impossible("an entry of `choose` does not say how many `micro_batches`");
  return choice;
}

// Ranks from the order of preference. Stages that no choice has are not to be listed, and every other is.
result<stage_ranks> rank(const std::vector<std::string>& prefer, const std::vector<schedule_choice>& choices) {
  std::array<bool, stage_kind_count> needed{};
  needed[index_of(stage_kind::shared)] = needed[index_of(stage_kind::mlp)] = true;
  for (const auto& choice : choices) {
    needed[index_of(stage_kind::attn)] |= !choice.split_attention;
    needed[index_of(stage_kind::attn_0)] |= choice.split_attention;
    needed[index_of(stage_kind::attn_1)] |= choice.split_attention;
  }
  stage_ranks ranks{};
  std::array<bool, stage_kind_count> listed{};
  for (size_t i = 0; i < prefer.size(); ++i) {
    const auto* const found = std::find_if(std::begin(preferences), std::end(preferences),
                                           [&](const auto& one) { return one.first == prefer[i]; });
    if (found == std::end(preferences))
      return impossible("`prefer` lists '" + prefer[i] + "'; stages are attn, attn_0, attn_1, shared, mlp");
    const size_t at = index_of(found->second);
    if (listed[at]) return impossible("`prefer` lists " + prefer[i] + " twice");
    if (!needed[at]) return impossible("`prefer` lists " + prefer[i] + ", which there is not with this `attention`");
    listed[at] = true;
    ranks[at] = static_cast<uint8_t>(i);
  }
  for (const auto& [text, kind] : preferences)
    if (needed[index_of(kind)] && !listed[index_of(kind)])
      return impossible("`prefer` leaves out " + std::string(text) + ", so that it would never run");
  // The head is the last attention stage's place.
  ranks[index_of(stage_kind::head)] =
      ranks[index_of(needed[index_of(stage_kind::attn)] ? stage_kind::attn : stage_kind::attn_0)];
  return ranks;
}

result<void> validate(const schedule& read) {
  if (read.choices.empty()) return impossible("`choose` is empty: there must be a way to cut the batch");
  for (size_t i = 0; i < read.choices.size(); ++i) {
    const auto& choice = read.choices[i];
    if (choice.micro_batches < 1 || choice.micro_batches > schedule::micro_batches_limit)
      return impossible("`micro_batches` is " + std::to_string(choice.micro_batches) + "; it must be between 1 and " +
                        std::to_string(schedule::micro_batches_limit));
    if (std::find(read.choices.begin(), read.choices.begin() + static_cast<std::ptrdiff_t>(i), choice) !=
        read.choices.begin() + static_cast<std::ptrdiff_t>(i))
      return impossible("`choose` lists the same choice twice");
  }
  if (read.probe_steps < 1 || read.probe_steps > 10000) return impossible("`probe_steps` must be between 1 and 10000");
  if (read.reprobe_steps < read.probe_steps) return impossible("`reprobe_steps` must not be less than `probe_steps`");
  if (read.hysteresis_percent > 100) return impossible("`hysteresis_percent` must be between 0 and 100");
  return {};
}

std::string names_there_are() {
  std::string names;
  for (const auto& shipped : shipped_schedules()) names += (names.empty() ? "" : ", ") + std::string(shipped.name);
  return names;
}

result<schedule> read_file(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::ostringstream text;
  text << stream.rdbuf();
  auto read = parse_schedule(text.str());
  if (!read) return error{read.failure().code, file.string() + ": " + read.failure().message};
  return read;
}

}  // namespace

uint32_t schedule::micro_batches_max() const {
  uint32_t most = 1;
  for (const auto& choice : choices) most = std::max(most, choice.micro_batches);
  return most;
}

schedule taking_turns(uint32_t micro_batches) {
  schedule made;
  made.choices = {{micro_batches, false}};
  return made;
}

result<schedule> parse_schedule(std::string_view yaml) {
  schedule read;
  std::optional<uint32_t> micro_batches;
  std::optional<bool> split;
  std::vector<schedule_choice> choices;
  bool chooses = false;
  std::vector<std::string> prefer;
  key_table keys;
  keys.add("name", read.name);
  keys.add("micro_batches", [&](const YAML::Node& node) { micro_batches = node.as<uint32_t>(); });
  keys.add("attention", [&](const YAML::Node& node) { split = split_from(node.as<std::string>()); });
  keys.add("choose", [&](const YAML::Node& node) {
    chooses = true;
    for (const auto& one : node) choices.push_back(read_choice(one));
  });
  keys.add("prefer", prefer);
  keys.add("probe_steps", read.probe_steps);
  keys.add("reprobe_steps", read.reprobe_steps);
  keys.add("hysteresis_percent", read.hysteresis_percent);
  try {
    if (auto done = keys.read(YAML::Load(std::string(yaml))); !done) return done.failure();
  } catch (const YAML::Exception& failure) {
    return error{errc::malformed, std::string("this is not YAML: ") + failure.what()};
  }
  if (chooses && (micro_batches || split))
    return impossible("`choose` lists the choices; `micro_batches` and `attention` beside it say something else");
  if (!chooses && !micro_batches) return impossible("`micro_batches` is missing; give a number, or `choose`");
  read.choices = chooses ? choices : std::vector{schedule_choice{*micro_batches, split.value_or(false)}};
  if (auto valid = validate(read); !valid) return valid.failure();
  auto ranks = rank(prefer, read.choices);
  if (!ranks) return ranks.failure();
  read.ranks = *ranks;
  return read;
}

std::string to_yaml(const schedule& from) {
  YAML::Emitter out;
  out << YAML::BeginMap << YAML::Key << "name" << YAML::Value << from.name;
  out << YAML::Key << "choose" << YAML::Value << YAML::BeginSeq;
  std::array<bool, stage_kind_count> needed{};
  needed[index_of(stage_kind::shared)] = needed[index_of(stage_kind::mlp)] = true;
  for (const auto& choice : from.choices) {
    out << YAML::Flow << YAML::BeginMap << YAML::Key << "micro_batches" << YAML::Value << choice.micro_batches
        << YAML::Key << "attention" << YAML::Value << (choice.split_attention ? "split" : "whole") << YAML::EndMap;
    for (const auto kind : {stage_kind::attn_0, stage_kind::attn_1}) needed[index_of(kind)] |= choice.split_attention;
    needed[index_of(stage_kind::attn)] |= !choice.split_attention;
  }
  out << YAML::EndSeq << YAML::Key << "prefer" << YAML::Value << YAML::Flow << YAML::BeginSeq;
  std::vector<std::pair<uint8_t, std::string_view>> order;
  for (const auto& [text, kind] : preferences)
    if (needed[index_of(kind)]) order.emplace_back(from.ranks[index_of(kind)], text);
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [position, text] : order) out << std::string(text);
  out << YAML::EndSeq << YAML::Key << "probe_steps" << YAML::Value << from.probe_steps << YAML::Key << "reprobe_steps"
      << YAML::Value << from.reprobe_steps << YAML::Key << "hysteresis_percent" << YAML::Value
      << from.hysteresis_percent << YAML::EndMap;
  return out.c_str();
}

result<schedule> find_schedule(const std::string& name_or_path, const std::filesystem::path& directory) {
  const std::filesystem::path path = name_or_path;
  const auto beside = directory / path;
  if (path.has_parent_path() || path.extension() == ".yaml") {
    if (std::filesystem::is_regular_file(beside)) return read_file(beside);
    return error{errc::not_found, "there is no schedule " + beside.string()};
  }
  const auto in_folder = directory / "schedules" / (name_or_path + ".yaml");
  if (std::filesystem::is_regular_file(in_folder)) return read_file(in_folder);
  for (const auto& shipped : shipped_schedules())
    if (shipped.name == name_or_path) return parse_schedule(shipped.yaml);
  return error{errc::not_found, "there is no schedule `" + name_or_path + "`; there are " + names_there_are() +
                                    ", or give the path of a YAML file"};
}

}  // namespace troupe
