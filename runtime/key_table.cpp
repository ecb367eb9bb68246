#include "runtime/key_table.hpp"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <vector>

namespace troupe {

namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0]++;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace

result<void> key_table::read(const YAML::Node& document) const {
  if (!document.IsMap()) return error{errc::malformed, "this must be a list of `key: value` pairs"};
  for (const auto& entry : document) {
    const auto key = entry.first.as<std::string>();
    const auto known = setters_.find(key);
    if (known == setters_.end()) {
      const auto nearest = std::min_element(setters_.begin(), setters_.end(), [&](const auto& a, const auto& b) {
        return edit_distance(key, a.first) < edit_distance(key, b.first);
      });
      return error{errc::invalid_argument, "there is no setting `" + key + "`; did you mean `" + nearest->first + "`?"};
    }
    try {
      known->second(entry.second);
    } catch (const YAML::Exception&) {
      return error{errc::malformed, "the value of `" + key + "` on line " +
                                        std::to_string(entry.second.Mark().line + 1) + " cannot be read"};
    } catch (const error& refused) {
      return refused;
    }
  }
  return {};
}

}  // namespace troupe
