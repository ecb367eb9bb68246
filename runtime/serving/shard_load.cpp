#include "runtime/serving/shard_load.hpp"

#include <algorithm>
#include <tuple>
#include <vector>

#include "runtime/nearest_name.hpp"
#include "runtime/placement/random.hpp"
#include "runtime/placement/settings_text.hpp"

namespace troupe {

namespace {

template <class Key>
std::optional<size_t> least(std::span<const shard_load> loads, Key&& key) {
  std::optional<size_t> best;
  for (size_t i = 0; i < loads.size(); ++i)
    if (!best || key(i) < key(*best)) best = i;
  return best;
}

size_t drawn(uint64_t seed, uint64_t turn, size_t count) {
  seeded_random draw(seed ^ (turn * 0x9e3779b97f4a7c15ULL));
  return draw.below(static_cast<uint32_t>(count));
}

// What both balancers' names have in common; `names` are those that the balancer knows.
struct named_choice {
  std::string name;
  uint64_t seed = 1;
};

result<named_choice> parse_choice(const std::string& text, const char* balancer,
                                  const std::vector<std::string>& names) {
  auto settings = settings_text::parse(text);
  if (!settings) return settings.failure();
  named_choice choice{settings->name()};
  if (std::find(names.begin(), names.end(), choice.name) == names.end())
    return error{errc::not_found, std::string("there is no ") + balancer + " balancer '" + choice.name +
                                      "'; did you mean '" + nearest_name(choice.name, names) + "'?"};
  if (choice.name == "random") settings->take("seed", choice.seed);
  if (auto finished = settings->finish(); !finished) return finished.failure();
  return choice;
}

}  // namespace

std::optional<size_t> choose_prefill_shard(std::span<const shard_load> loads, uint32_t prompt_tokens) {
  const uint64_t work = attention_work(prompt_tokens);
  return least(loads, [&](size_t i) {
    return std::tuple(loads[i].attention_work + work, loads[i].tokens + prompt_tokens, loads[i].requests);
  });
}

std::optional<size_t> choose_decode_shard(std::span<const shard_load> loads, size_t holder) {
  return least(loads, [&](size_t i) { return std::tuple(loads[i].tokens, loads[i].requests, i != holder); });
}

result<prefill_choice> make_prefill_choice(const std::string& text) {
  const auto choice = parse_choice(text, "prefill", {"published", "round_robin", "random"});
  if (!choice) return choice.failure();
  if (choice->name == "round_robin")
    return prefill_choice([](auto loads, uint32_t, uint64_t turn) { return static_cast<size_t>(turn % loads.size()); });
  if (choice->name == "random")
    return prefill_choice(
        [seed = choice->seed](auto loads, uint32_t, uint64_t turn) { return drawn(seed, turn, loads.size()); });
  return prefill_choice(
      [](auto loads, uint32_t prompt_tokens, uint64_t) { return *choose_prefill_shard(loads, prompt_tokens); });
}

result<decode_choice> make_decode_choice(const std::string& text) {
  const auto choice = parse_choice(text, "decode", {"stay", "published", "round_robin", "random"});
  if (!choice) return choice.failure();
  if (choice->name == "stay") return decode_choice([](size_t holder, auto, uint64_t) { return holder; });
  if (choice->name == "round_robin")
    return decode_choice([](size_t, auto loads, uint64_t turn) { return static_cast<size_t>(turn % loads.size()); });
  if (choice->name == "random")
    return decode_choice(
        [seed = choice->seed](size_t, auto loads, uint64_t turn) { return drawn(seed, turn, loads.size()); });
  return decode_choice([](size_t holder, auto loads, uint64_t) { return *choose_decode_shard(loads, holder); });
}

uint64_t attention_work(uint32_t prompt_tokens) { return uint64_t{prompt_tokens} * (prompt_tokens + 1) / 2; }

shard_imbalance imbalance_of(std::span<const shard_load> loads) {
  const auto of = [&](uint64_t shard_load::*field) {
    uint64_t sum = 0, most = 0;
    for (const auto& load : loads) {
      sum += load.*field;
      most = std::max(most, load.*field);
    }
    return sum == 0 ? 1.0 : static_cast<double>(most) * static_cast<double>(loads.size()) / static_cast<double>(sum);
  };
  return {of(&shard_load::requests), of(&shard_load::tokens), of(&shard_load::attention_work)};
}

}  // namespace troupe
