#include <algorithm>
#include <charconv>
#include <optional>

#include "runtime/placement/load_bytes.hpp"

namespace troupe {

namespace {

error at_line(const std::string& source, size_t line, const std::string& why) {
  return {errc::malformed, source + ", line " + std::to_string(line) + ": " + why};
}

std::string_view next_line(std::string_view& text) {
  const auto end = std::min(text.find('\n'), text.size());
  auto line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return line;
}

// The numbers of a line between commas; nothing when one is none.
std::optional<std::vector<double>> numbers(std::string_view line) {
  std::vector<double> found;
  for (size_t from = 0; from <= line.size();) {
    const auto comma = std::min(line.find(',', from), line.size());
    auto part = line.substr(from, comma - from);
    while (!part.empty() && part.front() == ' ') part.remove_prefix(1);
    while (!part.empty() && part.back() == ' ') part.remove_suffix(1);
    double value = 0;
    const auto [stopped, failure] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (failure != std::errc() || stopped != part.data() + part.size()) return std::nullopt;
    found.push_back(value);
    from = comma + 1;
  }
  return found;
}

// A line for each layer.
result<load_history> matrix(std::string_view text, const std::string& source) {
  count_array counts;
  uint64_t layers = 0;
  for (size_t line = 1; !text.empty(); ++line) {
    const auto row = next_line(text);
    if (row.empty()) continue;
    const auto values = numbers(row);
    if (!values) return at_line(source, line, "a matrix has numbers between commas");
    if (layers++ > 0 && values->size() != counts.shape[1])
      return at_line(
          source, line,
          "it has " + std::to_string(values->size()) + " experts, the line before " + std::to_string(counts.shape[1]));
    counts.shape = {layers, values->size()};
    for (const double value : *values) {
      const auto count = whole_count(value, source);
      if (!count) return at_line(source, line, count.failure().message);
      counts.counts.push_back(*count);
    }
  }
  return load_from_counts(std::move(counts), false, source);
}

struct entry {
  uint64_t window, source, layer, expert, rows;
};

constexpr std::string_view pairs_header = "window,layer,a,b,tokens";

result<std::vector<uint64_t>> whole_numbers(std::string_view row, size_t count, const std::string& source,
                                            size_t line) {
  const auto values = numbers(row);
  if (!values || values->size() != count)
    return at_line(source, line, "there must be " + std::to_string(count) + " numbers between commas");
  std::vector<uint64_t> whole;
  for (const double value : *values) {
    const auto found = whole_count(value, source);
    if (!found) return at_line(source, line, found.failure().message);
    whole.push_back(*found);
  }
  return whole;
}

// The lines behind `pairs_header`, which was line `line`.
result<void> add_pairs(load_history& load, std::string_view text, size_t line, const std::string& source) {
  while (!text.empty()) {
    const auto row = next_line(text);
    ++line;
    if (row.empty()) continue;
    const auto values = whole_numbers(row, 5, source, line);
    if (!values) return values.failure();
    const uint64_t window = (*values)[0];
    const uint64_t layer = (*values)[1];
    const uint64_t a = (*values)[2];
    const uint64_t b = (*values)[3];
    if (window >= load.windows.size() || layer >= load.layers || b >= load.experts)
      return at_line(source, line, "the rows before have no such window, layer or expert");
    if (a >= b) return at_line(source, line, "expert a of a pair must be below b");
    load.windows[window].pairs.push_back(
        {static_cast<uint32_t>(layer), static_cast<uint32_t>(a), static_cast<uint32_t>(b), (*values)[4]});
  }
  return {};
}

result<load_history> long_form(std::string_view text, bool by_source, const std::string& source) {
  std::vector<entry> entries;
  uint64_t windows = 0;
  uint64_t sources = 0;
  uint64_t layers = 0;
  uint64_t experts = 0;
  size_t line = 2;
  bool pairs_follow = false;
  for (; !text.empty() && !pairs_follow; ++line) {
    const auto row = next_line(text);
    pairs_follow = row == pairs_header;
    if (row.empty() || pairs_follow) continue;
    auto whole = whole_numbers(row, by_source ? 5 : 4, source, line);
    if (!whole) return whole.failure();
    if (!by_source) whole->insert(whole->begin() + 1, 0);
    const entry read{(*whole)[0], (*whole)[1], (*whole)[2], (*whole)[3], (*whole)[4]};
    if (read.window > 1'000'000 || read.source > 65'534 || read.layer > 65'534 || read.expert > 65'534)
      return at_line(source, line, "windows go to 1000000; sources, layers and experts to 65534");
    windows = std::max(windows, read.window + 1);
    sources = std::max(sources, read.source + 1);
    layers = std::max(layers, read.layer + 1);
    experts = std::max(experts, read.expert + 1);
    entries.push_back(read);
  }
  if (entries.empty()) return error{errc::malformed, source + ": there are no rows in it"};
  if (!by_source) sources = 0;
  if (layers * experts > load_entries_max / windows / (1 + sources))
    return error{errc::malformed, source + ": windows x layers x experts must not be above 2^28"};
  // A small file must not take a large memory: zeros may be left out, but not nearly all entries be zero.
  if (layers * experts * windows * (1 + sources) > 4096 * entries.size() + (uint64_t{1} << 20))
    return error{errc::malformed, source + ": it has too few lines for its windows, layers and experts"};
  load_history load{static_cast<uint32_t>(layers), static_cast<uint32_t>(experts), static_cast<uint32_t>(sources), {}};
  load.windows.resize(windows);
  for (auto& window : load.windows) {
    window.rows.resize(layers * experts);
    window.source_rows.resize(layers * experts * sources);
  }
  for (const auto& read : entries) {
    auto& window = load.windows[read.window];
    window.rows[read.layer * experts + read.expert] += read.rows;
    if (by_source) window.source_rows[(read.source * layers + read.layer) * experts + read.expert] += read.rows;
  }
  if (auto added = add_pairs(load, text, line - 1, source); !added) return added.failure();
  return load;
}

}  // namespace

result<load_history> load_from_csv(const std::string& text, const std::string& source) {
  std::string_view rest = text;
  const auto header = next_line(rest);
  if (header == "window,layer,expert,rows") return long_form(rest, false, source);
  if (header == "window,source,layer,expert,rows") return long_form(rest, true, source);
  if (!numbers(header))
    return at_line(source, 1,
                   "this is no load: neither a matrix of numbers nor a header `window,layer,expert,rows` or "
                   "`window,source,layer,expert,rows`");
  return matrix(text, source);
}

}  // namespace troupe
