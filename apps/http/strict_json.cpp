#include "apps/http/strict_json.hpp"

#include <set>
#include <vector>

namespace troupe::http {

namespace {

using nlohmann::json;

// A library message such as "[json.exception.parse_error.101] parse error at line 1, ...", cut to
// what a reader needs. It quotes the input, so its length is bounded here.
std::string shorten(std::string_view message) {
  if (const auto bracket = message.find("] "); bracket != std::string_view::npos) {
    message.remove_prefix(bracket + 2);
  }
  constexpr size_t length_max = 200;
  return std::string(message.substr(0, length_max)) + (message.size() > length_max ? "..." : "");
}

// Looks at the text once, before a value is built from it; stops at the first violation.
class json_checker final : public nlohmann::json_sax<json> {
 public:
  std::string problem;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }

  bool start_object(size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (names_.back().insert(name).second) return true;
    problem = "the name '" + name.substr(0, 64) + "' appears twice in one object; send it once";
    return false;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& cause) override {
    problem = shorten(cause.what());
    return false;
  }

 private:
  bool open() {
    if (names_.size() == json_depth_max) {
      problem = "it is nested deeper than " + std::to_string(json_depth_max) + " levels";
      return false;
    }
    names_.emplace_back();
    return true;
  }
  bool close() {
    names_.pop_back();
    return true;
  }

  std::vector<std::set<std::string, std::less<>>> names_;  // of the objects that are open
};

}  // namespace

std::variant<json, std::string> parse_strict_json(std::string_view text) {
  json_checker checker;
  if (!json::sax_parse(text, &checker)) return checker.problem;
  return json::parse(text, nullptr, /*allow_exceptions=*/false);
}

std::string dump(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace troupe::http
