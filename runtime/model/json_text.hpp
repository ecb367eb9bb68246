// JSON files that somebody else wrote, read with care.
//
// Internal to runtime/model. Bounds the size and the nesting before the parser allocates, refuses
// duplicate keys (the library would keep the last silently), and lets no exception out. Any thread.
#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/error.hpp"

namespace troupe {

// A piece of a file inside a message: shortened, control characters and broken UTF-8 shown as '?', in
// double quotes.
std::string shown(std::string_view text);

// The whole file. Fails: not_found, malformed (larger than `bytes_max`), internal (cannot be read).
result<std::string> read_text_file(const std::filesystem::path& file, size_t bytes_max);

// `what` begins the sentence of an error: "config.json". Fails: malformed.
result<nlohmann::json> parse_json(std::string_view text, std::string_view what);

// The deepest nesting of arrays and objects in `text`, which need not be valid.
int json_depth(std::string_view text);

inline constexpr int json_depth_max = 64;

// Reads fields of one object; remembers the first thing that is wrong, so that a caller reads all
// its fields and looks once. After a failure the values returned are in range but mean nothing.
class json_fields {
 public:
  // `what` begins every sentence: "config.json". `object` outlives the reader.
  json_fields(const nlohmann::json& object, std::string what);

  // Present and not null.
  bool has(const char* field) const;
  // Present, and null.
  bool is_null(const char* field) const;
  // A null pointer when the field is absent or null.
  const nlohmann::json* get(const char* field) const;

  // Without a fallback a missing field is an error.
  int integer(const char* field, int least, int most, std::optional<int> fallback = {});
  double number(const char* field, double least, double most, std::optional<double> fallback = {});
  bool boolean(const char* field, std::optional<bool> fallback = {});
  std::string string(const char* field, std::optional<std::string> fallback = {});

  // Records a sentence "<what>: <complaint>" unless an earlier one is there.
  void refuse(errc code, std::string complaint);
  void require(bool condition, errc code, std::string complaint) {
    if (!condition) refuse(code, std::move(complaint));
  }
  // Takes over what a reader of an object inside this one found.
  void adopt(const std::optional<error>& found) {
    if (!failure_) failure_ = found;
  }
  const std::optional<error>& failure() const { return failure_; }

 private:
  const nlohmann::json* expect(const char* field, bool optional);

  const nlohmann::json* object_;
  std::string what_;
  std::optional<error> failure_;
};

}  // namespace troupe
