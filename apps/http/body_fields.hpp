// Typed access to the fields of a JSON object that a client sent; the first refusal is kept.
//
// A reader asks for every field it knows and looks at `failure()` once at the end. JSON null counts
// as absent, as OpenAI's clients mean it. Owned by the parser of one request; one thread.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "apps/http/api_error.hpp"

namespace troupe::http {

class body_fields {
 public:
  // Requires: `object` is a JSON object and outlives this. `prefix` names it in messages
  // ("stream_options."; empty for the body itself).
  explicit body_fields(const nlohmann::json& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  // Null when absent.
  const nlohmann::json* find(std::string_view name) const;

  bool boolean(std::string_view name, bool absent);
  double number(std::string_view name, double absent, double min, double max);
  std::optional<uint64_t> integer(std::string_view name, uint64_t min, uint64_t max);
  std::string text(std::string_view name);

  void fail(std::string_view name, std::string message, std::string code = "invalid_value");
  void fail(api_error refusal);
  const std::optional<api_error>& failure() const { return failure_; }

 private:
  const nlohmann::json& object_;
  std::string prefix_;
  std::optional<api_error> failure_;
};

// What a value is, for messages: "a string", "the number 3", "an array".
std::string describe(const nlohmann::json& value);

}  // namespace troupe::http
