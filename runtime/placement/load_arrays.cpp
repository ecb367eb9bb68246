#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

#include "runtime/placement/load_bytes.hpp"

namespace troupe {

namespace {

using json = nlohmann::json;

// Appends the numbers of nested lists of equal lengths. False with a sentence when they are not that.
class flattener {
 public:
  explicit flattener(const std::string& source) : source_(source) {}

  result<count_array> flatten(const json& nested) {
    const json* level = &nested;
    for (; level->is_array(); level = &(*level)[0]) {
      array_.shape.push_back(level->size());
      if (level->empty() || array_.shape.size() > 3) break;
    }
    if (array_.shape.size() < 2 || array_.shape.size() > 3 || array_.shape.back() == 0)
      return error{errc::malformed,
                   source_ + ": a load is a list of layers, or of steps, with a number for each expert"};
    if (!add(nested, 0)) return *failure_;
    return std::move(array_);
  }

 private:
  bool add(const json& level, size_t depth) {
    if (depth == array_.shape.size()) {
      if (!level.is_number()) return fail("'" + level.dump().substr(0, 40) + "' is not a number of rows");
      const auto count = whole_count(level.get<double>(), source_);
      if (!count) {
        failure_ = count.failure();
        return false;
      }
      array_.counts.push_back(*count);
      return true;
    }
    if (!level.is_array() || level.size() != array_.shape[depth])
      return fail("its lists are not all of the same length");
    return std::all_of(level.begin(), level.end(), [&](const json& each) { return add(each, depth + 1); });
  }
  bool fail(const std::string& why) {
    failure_ = error{errc::malformed, source_ + ": " + why};
    return false;
  }

  const std::string& source_;
  count_array array_;
  std::optional<error> failure_;
};

// What follows `key` in the header of an .npy file, as text up to `end`.
std::string_view header_value(std::string_view header, std::string_view key, char end) {
  const auto at = header.find(key);
  if (at == std::string_view::npos) return {};
  auto value = header.substr(at + key.size());
  while (!value.empty() && (value.front() == ' ' || value.front() == ':')) value.remove_prefix(1);
  return value.substr(0, std::min(value.find(end), value.size()));
}

}  // namespace

result<count_array> counts_from_json(const std::string& text, const std::string& source) {
  constexpr int depth_max = 8;
  bool deep = false;
  const auto refuse = [&](const std::string& why) { return error{errc::malformed, source + why}; };
  try {
    const auto document = json::parse(text, [&](int depth, json::parse_event_t, json&) {
      deep = deep || depth > depth_max;
      return !deep;
    });
    if (deep) return refuse(" is nested too deeply for a load");
    if (!document.is_object()) return flattener(source).flatten(document);
    const auto counts = document.find("logical_count");
    if (counts == document.end()) return refuse(" has no \"logical_count\"");
    return flattener(source).flatten(*counts);
  } catch (const json::exception& failure) {
    if (deep) return refuse(" is nested too deeply for a load");
    return refuse(" is not JSON: " + std::string(failure.what()).substr(0, 200));
  }
}

result<count_array> counts_from_npy(std::string_view bytes, const std::string& source) {
  const auto refuse = [&](const char* why) { return error{errc::malformed, source + ": " + why}; };
  if (bytes.size() < 12) return refuse("the .npy file is cut short");
  const bool wide = bytes[6] != 1;
  uint32_t length = 0;
  std::memcpy(&length, bytes.data() + 8, wide ? 4 : 2);
  const size_t start = wide ? 12 : 10;
  if (length > bytes.size() - start) return refuse("the .npy file is cut short");
  const auto header = bytes.substr(start, length);
  const auto data = bytes.substr(start + length);
  const auto dtype = header_value(header, "'descr'", ',');
  if (dtype.size() != 5 || (dtype[1] != '<' && dtype[1] != '|') ||
      std::string_view("iuf").find(dtype[2]) == std::string_view::npos ||
      std::string_view(dtype[2] == 'f' ? "48" : "1248").find(dtype[3]) == std::string_view::npos)
    return error{errc::unsupported, source + ": the dtype must be a little-endian integer, float32 or float64"};
  if (!header_value(header, "'fortran_order'", ',').starts_with("False"))
    return error{errc::unsupported, source + ": the array must be in C order"};
  auto shape = header_value(header, "'shape'", ')');
  count_array array;
  uint64_t entries = 1;
  for (shape.remove_prefix(std::min<size_t>(1, shape.size())); !shape.empty();) {
    const auto comma = std::min(shape.find(','), shape.size());
    auto part = shape.substr(0, comma);
    while (!part.empty() && part.front() == ' ') part.remove_prefix(1);
    shape.remove_prefix(std::min(comma + 1, shape.size()));
    if (part.empty()) continue;
    uint64_t size = 0;
    const auto [stopped, failure] = std::from_chars(part.data(), part.data() + part.size(), size);
    if (failure != std::errc() || stopped != part.data() + part.size() || size == 0 ||
        size > load_entries_max / entries)
      return refuse("the shape in its header cannot be read");
    entries *= size;
    array.shape.push_back(size);
  }
  const auto size = static_cast<size_t>(dtype[3] - '0');
  if (data.size() != entries * size) return refuse("its data is not as long as its shape says");
  auto counts = counts_from_raw(data, dtype[2], size, source);
  if (!counts) return counts.failure();
  array.counts = std::move(*counts);
  return array;
}

}  // namespace troupe
