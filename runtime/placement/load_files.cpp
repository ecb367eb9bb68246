#include "runtime/placement/load_files.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <tuple>

#include "runtime/placement/load_bytes.hpp"

namespace troupe {

static_assert(std::endian::native == std::endian::little, "files are little-endian, and read as they are");

namespace {

constexpr std::string_view magic = "TRPLOAD1";
constexpr uint8_t has_sources = 1;
constexpr uint8_t has_pairs = 2;

uint64_t fnv(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char byte : bytes) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3ULL;
  return hash;
}

template <class Number>
void put(std::string& out, Number value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_number(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

// Reads forward; after a failure everything is 0 and `failed` stays.
class byte_reader {
 public:
  explicit byte_reader(std::string_view bytes) : left_(bytes) {}

  template <class Number>
  Number fixed() {
    Number value{};
    if (left_.size() < sizeof value) {
      fail();
      return value;
    }
    std::memcpy(&value, left_.data(), sizeof value);
    left_.remove_prefix(sizeof value);
    return value;
  }
  uint64_t number() {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = fixed<uint8_t>();
      value |= uint64_t{byte & 0x7fU} << shift;
      if (byte < 0x80) return value;
    }
    fail();
    return 0;
  }
  void numbers(std::vector<uint64_t>& into, uint64_t count) {
    // Each takes a byte at least.
    if (count > left_.size()) return fail();
    into.resize(count);
    for (auto& value : into) value = number();
  }
  size_t left() const { return left_.size(); }
  bool failed() const { return failed_; }

 private:
  void fail() {
    failed_ = true;
    left_ = {};
  }

  std::string_view left_;
  bool failed_ = false;
};

}  // namespace

result<uint64_t> whole_count(double value, const std::string& source) {
  const bool whole = value >= 0 && value < 0x1p53;  // false for what is no number
  if (!whole)
    return error{errc::malformed, source + ": a count of rows must be from 0 to 2^53, and is " + std::to_string(value)};
  return static_cast<uint64_t>(std::llround(value));
}

result<std::vector<uint64_t>> counts_from_raw(std::string_view bytes, char kind, size_t size,
                                              const std::string& source) {
  std::vector<uint64_t> counts(bytes.size() / size);
  for (size_t i = 0; i < counts.size(); ++i) {
    const char* from = bytes.data() + i * size;
    double real = 0;
    if (kind == 'f') {
      float single = 0;
      std::memcpy(size == 8 ? static_cast<void*>(&real) : &single, from, size);
      if (size == 4) real = double{single};
    } else {
      uint64_t value = 0;
      std::memcpy(&value, from, size);
      const uint64_t sign = uint64_t{1} << (8 * size - 1);
      real = kind == 'i' && (value & sign) != 0 ? -1.0 : static_cast<double>(value);
    }
    const auto count = whole_count(real, source);
    if (!count) return count.failure();
    counts[i] = *count;
  }
  return counts;
}

result<load_history> load_from_counts(count_array counts, bool recorded, const std::string& source) {
  if (counts.shape.size() == 2) counts.shape.insert(counts.shape.begin(), 1);
  if (counts.shape.size() != 3)
    return error{errc::malformed, source + ": a load is [layers, experts] or [steps, layers, experts]; this has " +
                                      std::to_string(counts.shape.size()) + " dimensions"};
  const uint64_t steps = counts.shape[0];
  const uint64_t layers = counts.shape[1];
  const uint64_t experts = counts.shape[2];
  if (steps == 0 || layers == 0 || experts == 0 || layers > 65'534 || experts > 65'534)
    return error{errc::malformed, source + ": a load has from 1 to 65534 layers and experts, and a step"};
  std::vector<bool> step_used(steps, !recorded);
  std::vector<bool> layer_used(layers, !recorded);
  for (uint64_t i = 0; recorded && i < counts.counts.size(); ++i)
    if (counts.counts[i] > 0) {
      step_used[i / (layers * experts)] = true;
      layer_used[i / experts % layers] = true;
    }
  load_history load{0, static_cast<uint32_t>(experts), 0, {}};
  load.layers = static_cast<uint32_t>(std::count(layer_used.begin(), layer_used.end(), true));
  for (uint64_t step = 0; step < steps; ++step) {
    if (!step_used[step]) continue;
    auto& rows = load.windows.emplace_back().rows;
    for (uint64_t layer = 0; layer < layers; ++layer) {
      const auto from = counts.counts.begin() + static_cast<std::ptrdiff_t>((step * layers + layer) * experts);
      if (layer_used[layer]) rows.insert(rows.end(), from, from + static_cast<std::ptrdiff_t>(experts));
    }
  }
  if (load.windows.empty()) return error{errc::malformed, source + ": there are no rows in it"};
  return load;
}

result<load_history> load_from_binary(const std::string& bytes, const std::string& source) {
  const error broken{errc::malformed, source + ": the file is cut short or damaged"};
  if (bytes.size() < magic.size() + 24) return broken;
  const auto content = std::string_view(bytes).substr(0, bytes.size() - 8);
  uint64_t hash = 0;
  std::memcpy(&hash, bytes.data() + content.size(), 8);
  if (hash != fnv(content)) return broken;
  byte_reader reader(content.substr(magic.size()));
  load_history load;
  load.layers = reader.fixed<uint32_t>();
  load.experts = reader.fixed<uint32_t>();
  const auto windows = reader.fixed<uint32_t>();
  load.sources = reader.fixed<uint32_t>();
  const uint64_t entries = uint64_t{load.layers} * load.experts;
  if (load.layers > 65'534 || load.experts > 65'534 || load.sources > 65'534 || entries == 0 ||
      entries > load_entries_max || windows > reader.left())
    return broken;
  for (uint32_t i = 0; i < windows && !reader.failed(); ++i) {
    auto& window = load.windows.emplace_back();
    const auto flags = reader.fixed<uint8_t>();
    reader.numbers(window.rows, entries);
    if ((flags & has_sources) != 0) reader.numbers(window.source_rows, entries * load.sources);
    if ((flags & has_pairs) == 0) continue;
    const auto pairs = reader.number();
    if (pairs > reader.left() / 4) return broken;
    for (uint64_t pair = 0; pair < pairs; ++pair) {
      const auto layer = reader.number();
      const auto a = reader.number();
      const auto further = reader.number();
      if (layer >= load.layers || further == 0 || a >= load.experts || further >= load.experts - a) return broken;
      window.pairs.push_back({static_cast<uint32_t>(layer), static_cast<uint32_t>(a),
                              static_cast<uint32_t>(a + further), reader.number()});
    }
  }
  if (reader.failed() || reader.left() > 0) return broken;
  return load;
}

std::string to_binary(const load_history& load) {
  std::string out(magic);
  put(out, load.layers);
  put(out, load.experts);
  put(out, static_cast<uint32_t>(load.windows.size()));
  put(out, load.sources);
  for (const auto& window : load.windows) {
    out += static_cast<char>((window.source_rows.empty() ? 0 : has_sources) | (window.pairs.empty() ? 0 : has_pairs));
    for (const uint64_t rows : window.rows) put_number(out, rows);
    for (const uint64_t rows : window.source_rows) put_number(out, rows);
    if (window.pairs.empty()) continue;
    put_number(out, window.pairs.size());
    for (const auto& pair : window.pairs)
      for (const uint64_t value : {uint64_t{pair.layer}, uint64_t{pair.a}, uint64_t{pair.b - pair.a}, pair.tokens})
        put_number(out, value);
  }
  put(out, fnv(out));
  return out;
}

std::string to_csv(const load_history& load) {
  const bool by_source = std::all_of(load.windows.begin(), load.windows.end(), [&](const load_window& window) {
    return load.sources > 0 && !window.source_rows.empty();
  });
  std::string out = by_source ? "window,source,layer,expert,rows\n" : "window,layer,expert,rows\n";
  const uint32_t sources = by_source ? load.sources : 1;
  for (size_t window = 0; window < load.windows.size(); ++window)
    for (uint32_t source = 0; source < sources; ++source)
      for (size_t i = 0; i < size_t{load.layers} * load.experts; ++i) {
        const auto& rows = by_source ? load.windows[window].source_rows : load.windows[window].rows;
        const uint64_t count = rows[source * size_t{load.layers} * load.experts + i];
        // The last entry is written even when it is 0, since it says how many there are.
        if (count == 0 && i + 1 < size_t{load.layers} * load.experts) continue;
        out += std::to_string(window) + ",";
        if (by_source) out += std::to_string(source) + ",";
        out += std::to_string(i / load.experts) + "," + std::to_string(i % load.experts) + "," + std::to_string(count) +
               "\n";
      }
  if (std::ranges::all_of(load.windows, [](const load_window& window) { return window.pairs.empty(); })) return out;
  out += "window,layer,a,b,tokens\n";
  for (size_t window = 0; window < load.windows.size(); ++window)
    for (const auto& pair : load.windows[window].pairs)
      out += std::to_string(window) + "," + std::to_string(pair.layer) + "," + std::to_string(pair.a) + "," +
             std::to_string(pair.b) + "," + std::to_string(pair.tokens) + "\n";
  return out;
}

result<load_history> parse_load(const std::string& bytes, const std::string& source) {
  const std::string_view start = std::string_view(bytes).substr(0, 8);
  if (start == magic) return load_from_binary(bytes, source);
  const auto arrays = [&](result<count_array> counts, bool recorded) -> result<load_history> {
    if (!counts) return counts.failure();
    return load_from_counts(std::move(*counts), recorded, source);
  };
  if (start.starts_with("\x93NUMPY")) return arrays(counts_from_npy(bytes, source), false);
  if (start.starts_with("PK\x03\x04")) return arrays(counts_from_torch(bytes, source), true);
  const auto first = bytes.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && (bytes[first] == '{' || bytes[first] == '['))
    return arrays(counts_from_json(bytes, source), bytes[first] == '{');
  return load_from_csv(bytes, source);
}

result<load_history> read_load(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return error{errc::not_found, "there is no load file '" + path + "'"};
  const std::string bytes(std::istreambuf_iterator<char>(in), {});
  if (in.bad()) return error{errc::internal, "'" + path + "' cannot be read"};
  return parse_load(bytes, path);
}

result<void> write_load(const load_history& load, const std::string& path) {
  std::ofstream out(path, std::ios::binary);
  const auto bytes = path.ends_with(".csv") ? to_csv(load) : to_binary(load);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out) return error{errc::internal, "'" + path + "' cannot be written"};
  return {};
}

namespace {

// One entry for each pair.
void add_up(std::vector<expert_pair>& pairs) {
  std::ranges::sort(pairs, {}, [](const expert_pair& pair) { return std::tuple(pair.layer, pair.b, pair.a); });
  size_t kept = 0;
  for (const auto& pair : pairs) {
    if (kept > 0 && pairs[kept - 1].layer == pair.layer && pairs[kept - 1].a == pair.a && pairs[kept - 1].b == pair.b)
      pairs[kept - 1].tokens += pair.tokens;
    else
      pairs[kept++] = pair;
  }
  pairs.resize(kept);
}

}  // namespace

load_history merge_windows(const load_history& load, uint32_t count) {
  load_history merged{load.layers, load.experts, load.sources, {}};
  for (size_t i = 0; i < load.windows.size(); ++i) {
    if (i % std::max(1U, count) == 0) {
      merged.windows.push_back(load.windows[i]);
      continue;
    }
    auto& into = merged.windows.back();
    const auto& from = load.windows[i];
    for (size_t entry = 0; entry < into.rows.size(); ++entry) into.rows[entry] += from.rows[entry];
    // Known by source only where all of it is.
    if (into.source_rows.size() == from.source_rows.size())
      for (size_t entry = 0; entry < into.source_rows.size(); ++entry)
        into.source_rows[entry] += from.source_rows[entry];
    else
      into.source_rows.clear();
    into.pairs.insert(into.pairs.end(), from.pairs.begin(), from.pairs.end());
  }
  for (auto& window : merged.windows) add_up(window.pairs);
  return merged;
}

}  // namespace troupe
