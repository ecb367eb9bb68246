#include "runtime/placement/settings_text.hpp"

#include <charconv>
#include <cmath>

namespace troupe {

namespace {

template <class Number>
bool read(const std::string& text, Number& number) {
  const char* end = text.data() + text.size();
  const auto [stopped, failure] = std::from_chars(text.data(), end, number);
  return failure == std::errc() && stopped == end;
}

}  // namespace

result<settings_text> settings_text::parse(const std::string& text) {
  settings_text settings;
  const auto colon = text.find(':');
  settings.name_ = text.substr(0, colon);
  if (colon == std::string::npos) return settings;
  const auto refuse = [&](const std::string& why) {
    return error{errc::invalid_argument, "'" + text + "' must be NAME or NAME:key=value,...; " + why};
  };
  for (size_t from = colon + 1; from <= text.size();) {
    const auto comma = std::min(text.find(',', from), text.size());
    const auto part = text.substr(from, comma - from);
    const auto equals = part.find('=');
    if (equals == std::string::npos || equals == 0) return refuse("'" + part + "' has no key and value");
    const auto key = part.substr(0, equals);
    if (!settings.values_.emplace(key, part.substr(equals + 1)).second) return refuse(key + " comes twice");
    from = comma + 1;
  }
  return settings;
}

const std::string* settings_text::find(const std::string& key) {
  known_.push_back(key);
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

void settings_text::refuse(const std::string& key, const std::string& value, const char* wanted) {
  if (refused_.empty()) refused_ = name_ + ": " + key + " is '" + value + "'; it must be " + wanted;
}

void settings_text::take(const std::string& key, double& target) {
  const auto* value = find(key);
  if (value == nullptr) return;
  double number = 0;
  if (read(*value, number) && std::isfinite(number))
    target = number;
  else
    refuse(key, *value, "a number");
}

void settings_text::take(const std::string& key, uint32_t& target) {
  if (const auto* value = find(key); value != nullptr && !read(*value, target))
    refuse(key, *value, "a whole number below 4294967296");
}

void settings_text::take(const std::string& key, uint64_t& target) {
  if (const auto* value = find(key); value != nullptr && !read(*value, target)) refuse(key, *value, "a whole number");
}

void settings_text::take(const std::string& key, std::string& target) {
  if (const auto* value = find(key); value != nullptr) target = *value;
}

result<void> settings_text::finish() const {
  if (!refused_.empty()) return error{errc::invalid_argument, refused_};
  for (const auto& [key, value] : values_) {
    bool known = false;
    std::string list;
    for (const auto& name : known_) {
      known = known || name == key;
      list += (list.empty() ? "" : ", ") + name;
    }
    if (!known)
      return error{errc::invalid_argument,
                   name_ + " has no setting '" + key + "'; " + (list.empty() ? "it has none" : "there is: " + list)};
  }
  return {};
}

}  // namespace troupe
