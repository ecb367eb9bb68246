#include "apps/http/body_fields.hpp"

#include <array>
#include <charconv>

namespace troupe::http {

namespace {

// The shortest text that reads back as the same number: "0", "2", "0.5".
std::string to_text(double value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

}  // namespace

std::string describe(const nlohmann::json& value) {
  switch (value.type()) {
    case nlohmann::json::value_t::null: return "null";
    case nlohmann::json::value_t::boolean: return value.get<bool>() ? "true" : "false";
    case nlohmann::json::value_t::string: return "a string";
    case nlohmann::json::value_t::array: return "an array";
    case nlohmann::json::value_t::object: return "an object";
    default: return "the number " + value.dump();
  }
}

const nlohmann::json* body_fields::find(std::string_view name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool body_fields::boolean(std::string_view name, bool absent) {
  const auto* value = find(name);
  if (value == nullptr) return absent;
  if (!value->is_boolean()) {
    fail(name, "must be true or false, not " + describe(*value) + ".", "invalid_type");
    return absent;
  }
  return value->get<bool>();
}

double body_fields::number(std::string_view name, double absent, double min, double max) {
  const auto* value = find(name);
  if (value == nullptr) return absent;
  if (!value->is_number()) {
    fail(name, "must be a number, not " + describe(*value) + ".", "invalid_type");
    return absent;
  }
  const auto number = value->get<double>();
  if (number < min || number > max) {
    fail(name, "must be from " + to_text(min) + " to " + to_text(max) + ", not " + value->dump() + ".");
    return absent;
  }
  return number;
}

std::optional<uint64_t> body_fields::integer(std::string_view name, uint64_t min, uint64_t max) {
  const auto* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number_integer()) {
    fail(name, "must be a whole number, not " + describe(*value) + ".", "invalid_type");
    return std::nullopt;
  }
  const bool negative = !value->is_number_unsigned() && value->get<int64_t>() < 0;
  if (negative || value->get<uint64_t>() < min || value->get<uint64_t>() > max) {
    fail(name, "must be from " + std::to_string(min) + " to " + std::to_string(max) + ", not " + value->dump() + ".");
    return std::nullopt;
  }
  return value->get<uint64_t>();
}

std::string body_fields::text(std::string_view name) {
  const auto* value = find(name);
  if (value == nullptr) return {};
  if (!value->is_string()) {
    fail(name, "must be a string, not " + describe(*value) + ".", "invalid_type");
    return {};
  }
  return value->get<std::string>();
}

void body_fields::fail(std::string_view name, std::string message, std::string code) {
  const auto path = prefix_ + std::string(name);
  fail(bad_field(path, "'" + path + "' " + std::move(message), std::move(code)));
}

void body_fields::fail(api_error refusal) {
  if (!failure_) {
    failure_ = std::move(refusal);
  }
}

}  // namespace troupe::http
