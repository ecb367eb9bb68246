#include "runtime/model/json_text.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <system_error>
#include <unordered_set>
#include <vector>

#include "runtime/model/utf8.hpp"

namespace troupe {

namespace {

constexpr size_t shown_bytes_max = 80;

// A double in a sentence: "0.5", "1e-06".
std::string to_text(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%g", value);
  return buffer;
}

// Follows the parser and notes the first key that an object has twice.
class duplicate_finder {
 public:
  bool operator()(int /*depth*/, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    using event_t = nlohmann::json::parse_event_t;
    if (event == event_t::object_start) keys_.emplace_back();
    if (event == event_t::object_end && !keys_.empty()) keys_.pop_back();
    if (event == event_t::key && !keys_.empty()) {
      const std::string& key = parsed.get_ref<const std::string&>();
      if (!keys_.back().insert(key).second && !duplicate_) duplicate_ = key;
    }
    return true;
  }
  const std::optional<std::string>& duplicate() const { return duplicate_; }

 private:
  std::vector<std::unordered_set<std::string>> keys_;  // of the objects that are open now
  std::optional<std::string> duplicate_;
};

}  // namespace

std::string shown(std::string_view text) {
  const bool shortened = text.size() > shown_bytes_max;
  std::string out = "\"";
  for (size_t at = 0; at < text.size() && at < shown_bytes_max;) {
    const utf8_step step = utf8_next(text.substr(at));
    const bool plain = step.kind == utf8_kind::character && (step.bytes > 1 || (text[at] >= 0x20 && text[at] != 0x7F));
    if (plain) {
      out += text.substr(at, step.bytes);
    } else {
      out += '?';
    }
    at += step.bytes;
  }
  return out + (shortened ? "...\"" : "\"");
}

result<std::string> read_text_file(const std::filesystem::path& file, size_t bytes_max) {
  std::error_code status;
  const auto kind = std::filesystem::status(file, status).type();
  if (kind == std::filesystem::file_type::not_found) {
    return error{errc::not_found, "There is no file " + shown(file.string()) + "."};
  }
  if (kind != std::filesystem::file_type::regular) {
    return error{errc::internal, shown(file.string()) + " is not a file that can be read."};
  }
  const uintmax_t size = std::filesystem::file_size(file, status);
  if (!status && size > bytes_max) {
    return error{errc::malformed, shown(file.string()) + " has " + std::to_string(size) + " bytes; at most " +
                                      std::to_string(bytes_max) + " are accepted."};
  }
  std::ifstream stream(file, std::ios::binary);
  std::string text;
  if (!status && stream) {
    text.resize(static_cast<size_t>(size));
    stream.read(text.data(), static_cast<std::streamsize>(size));
    if (static_cast<uintmax_t>(stream.gcount()) == size) return text;
  }
  return error{errc::internal, shown(file.string()) + " cannot be read; look at its permissions."};
}

int json_depth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (in_string) {
      if (c == '\\') ++at;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == '[' || c == '{') deepest = std::max(deepest, ++depth);
    if (c == ']' || c == '}') --depth;
  }
  return deepest;
}

result<nlohmann::json> parse_json(std::string_view text, std::string_view what) {
  const std::string subject(what);
  if (json_depth(text) > json_depth_max) {
    return error{errc::malformed, subject + " nests more than " + std::to_string(json_depth_max) + " levels deep."};
  }
  try {
    duplicate_finder finder;
    nlohmann::json parsed = nlohmann::json::parse(text.begin(), text.end(), std::ref(finder));
    if (finder.duplicate()) {
      return error{errc::malformed, subject + " has the key " + shown(*finder.duplicate()) + " twice in one object."};
    }
    return parsed;
  } catch (const nlohmann::json::parse_error& failed) {
    return error{errc::malformed, subject + " is not valid JSON (near byte " + std::to_string(failed.byte) + ")."};
  } catch (const std::exception&) {
    // A number beyond a double, or no memory left for the tree.
    return error{errc::malformed, subject + " holds JSON that cannot be represented."};
  }
}

json_fields::json_fields(const nlohmann::json& object, std::string what) : object_(&object), what_(std::move(what)) {
  if (!object.is_object()) refuse(errc::malformed, "must be a JSON object");
}

bool json_fields::has(const char* field) const { return get(field) != nullptr; }

bool json_fields::is_null(const char* field) const {
  return object_->is_object() && object_->contains(field) && (*object_)[field].is_null();
}

const nlohmann::json* json_fields::get(const char* field) const {
  if (!object_->is_object()) return nullptr;
  const auto found = object_->find(field);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

const nlohmann::json* json_fields::expect(const char* field, bool optional) {
  const nlohmann::json* found = get(field);
  if (found == nullptr && !optional) refuse(errc::malformed, std::string("the field \"") + field + "\" is missing");
  return found;
}

int json_fields::integer(const char* field, int least, int most, std::optional<int> fallback) {
  const nlohmann::json* found = expect(field, fallback.has_value());
  if (found == nullptr) return fallback.value_or(least);
  const bool fits = found->is_number_unsigned()  ? found->get<uint64_t>() <= static_cast<uint64_t>(INT32_MAX)
                    : found->is_number_integer() ? found->get<int64_t>() >= INT32_MIN
                                                 : false;
  const int value = fits ? found->get<int>() : least;
  if (fits && value >= least && value <= most) return value;
  refuse(errc::malformed, std::string("\"") + field + "\" must be an integer from " + std::to_string(least) + " to " +
                              std::to_string(most) + (found->is_number() ? ", not " + found->dump() : ""));
  return least;
}

double json_fields::number(const char* field, double least, double most, std::optional<double> fallback) {
  const nlohmann::json* found = expect(field, fallback.has_value());
  if (found == nullptr) return fallback.value_or(least);
  const double value = found->is_number() ? found->get<double>() : std::nan("");
  if (value >= least && value <= most) return value;
  refuse(errc::malformed, std::string("\"") + field + "\" must be a number from " + to_text(least) + " to " +
                              to_text(most) + (found->is_number() ? ", not " + to_text(value) : ""));
  return least;
}

bool json_fields::boolean(const char* field, std::optional<bool> fallback) {
  const nlohmann::json* found = expect(field, fallback.has_value());
  if (found == nullptr) return fallback.value_or(false);
  if (found->is_boolean()) return found->get<bool>();
  refuse(errc::malformed, std::string("\"") + field + "\" must be true or false");
  return false;
}

std::string json_fields::string(const char* field, std::optional<std::string> fallback) {
  const nlohmann::json* found = expect(field, fallback.has_value());
  if (found == nullptr) return fallback.value_or("");
  if (found->is_string()) return found->get<std::string>();
  refuse(errc::malformed, std::string("\"") + field + "\" must be a string");
  return "";
}

void json_fields::refuse(errc code, std::string complaint) {
  if (!failure_) failure_ = error{code, what_ + ": " + std::move(complaint) + "."};
}

}  // namespace troupe
