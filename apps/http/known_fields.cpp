#include "apps/http/known_fields.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <vector>

namespace troupe::http {

namespace {

struct unserved_field {
  std::string_view name;
  std::string_view neutral;  // a JSON array of the values that change nothing
};

// Fields of OpenAI's and of other servers' APIs that change what is generated.
constexpr std::array unserved_fields = {
    unserved_field{"frequency_penalty", "[0]"},
    unserved_field{"presence_penalty", "[0]"},
    unserved_field{"repetition_penalty", "[1]"},
    unserved_field{"logit_bias", "[{}]"},
    unserved_field{"top_k", "[0, -1]"},
    unserved_field{"min_p", "[0]"},
    unserved_field{"min_tokens", "[0]"},
    unserved_field{"stop_token_ids", "[[]]"},
    unserved_field{"best_of", "[1]"},
    unserved_field{"echo", "[false]"},
    unserved_field{"suffix", "[\"\"]"},
    unserved_field{"use_beam_search", "[false]"},
    unserved_field{"tools", "[[]]"},
    unserved_field{"tool_choice", "[\"none\", \"auto\"]"},
    unserved_field{"functions", "[[]]"},
    unserved_field{"function_call", "[\"none\", \"auto\"]"},
    unserved_field{"response_format", "[{\"type\": \"text\"}]"},
    unserved_field{"modalities", "[[\"text\"]]"},
    unserved_field{"audio", "[]"},
};

// The name without case and separators: "maxTokens" and "max-tokens" are "max_tokens" misspelt.
std::string folded(std::string_view name) {
  std::string letters;
  for (const char letter : name) {
    if (letter >= 'A' && letter <= 'Z') {
      letters += static_cast<char>(letter - 'A' + 'a');
    } else if (letter != '_' && letter != '-') {
      letters += letter;
    }
  }
  return letters;
}

// Levenshtein's: the fewest insertions, deletions and substitutions that turn one into the other.
size_t edit_distance(std::string_view from, std::string_view to) {
  std::vector<size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < from.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < to.size(); ++j) {
      const size_t substituted = diagonal + (from[i] == to[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, substituted});
    }
  }
  return row.back();
}

bool looks_like(std::string_view name, std::string_view served) {
  constexpr size_t length_max = 32;  // no misspelling is longer, and the distance is quadratic
  if (name.size() > length_max) return false;
  const auto left = folded(name);
  const auto right = folded(served);
  const size_t distance_max = right.size() >= 8 ? 2 : right.size() >= 4 ? 1 : 0;
  return edit_distance(left, right) <= distance_max;
}

std::optional<api_error> check_neutral(const unserved_field& field, const nlohmann::json& value) {
  const auto neutral = nlohmann::json::parse(field.neutral);
  if (value.is_null() || std::find(neutral.begin(), neutral.end(), value) != neutral.end()) return std::nullopt;
  return bad_field(std::string(field.name),
                   "'" + std::string(field.name) + "' is not supported; leave it out" +
                       (neutral.empty() ? "." : " or send " + neutral[0].dump() + "."),
                   "unsupported_parameter");
}

}  // namespace

std::optional<api_error> check_unserved_fields(const nlohmann::json& object, std::span<const std::string_view> served,
                                               std::string_view prefix) {
  for (const auto& item : object.items()) {
    const std::string& name = item.key();
    if (std::find(served.begin(), served.end(), name) != served.end()) continue;
    const auto unserved = std::find_if(unserved_fields.begin(), unserved_fields.end(),
                                       [&](const auto& field) { return field.name == name; });
    if (unserved != unserved_fields.end() && prefix.empty()) {
      if (auto refusal = check_neutral(*unserved, item.value())) return refusal;
      continue;
    }
    const auto meant = std::find_if(served.begin(), served.end(), [&](auto known) { return looks_like(name, known); });
    if (meant != served.end()) {
      const auto path = std::string(prefix) + name;
      return bad_field(path, "'" + path + "' is not a known field; did you mean '" + std::string(*meant) + "'?",
                       "unknown_parameter");
    }
  }
  return std::nullopt;
}

}  // namespace troupe::http
