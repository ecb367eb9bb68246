#include "runtime/model/stop_matcher.hpp"

#include <algorithm>
#include <utility>

#include "runtime/model/utf8.hpp"

namespace troupe {

namespace {

// How many bytes at the end of `text` may be the beginning of `stop`, which is not in `text`.
size_t beginning_at_end(std::string_view text, std::string_view stop) {
  for (size_t bytes = std::min(text.size(), stop.size() - 1); bytes > 0; --bytes) {
    if (text.ends_with(stop.substr(0, bytes))) return bytes;
  }
  return 0;
}

}  // namespace

result<stop_matcher> stop_matcher::make(std::vector<std::string> stops) {
  if (stops.size() > stops_max) {
    return error{errc::invalid_argument, "At most " + std::to_string(stops_max) + " stop strings are accepted, not " +
                                             std::to_string(stops.size()) + "."};
  }
  for (const std::string& stop : stops) {
    if (stop.empty() || stop.size() > stop_bytes_max || !is_utf8(stop)) {
      return error{errc::invalid_argument,
                   "A stop string must be UTF-8 text of 1 to " + std::to_string(stop_bytes_max) + " bytes."};
    }
  }
  stop_matcher made;
  made.stops_ = std::move(stops);
  return made;
}

stop_matcher::output stop_matcher::push(std::string_view text) {
  if (matched_) return {{}, true};
  held_ += text;
  const std::string* first = nullptr;
  size_t first_begin = 0;
  size_t first_end = 0;
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    const size_t begin = held_.find(stop);
    if (begin == std::string::npos) {
      keep = std::max(keep, beginning_at_end(held_, stop));
      continue;
    }
    const size_t end = begin + stop.size();
    if (first == nullptr || end < first_end || (end == first_end && begin < first_begin)) {
      first = &stop;
      first_begin = begin;
      first_end = end;
    }
  }
  if (first != nullptr) {
    matched_ = *first;
    held_.resize(first_begin);
    return {std::exchange(held_, {}), true};
  }
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return {std::move(out), false};
}

std::string stop_matcher::flush() { return std::exchange(held_, {}); }

}  // namespace troupe
