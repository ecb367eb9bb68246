#include "runtime/model/safetensors_header.hpp"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "runtime/model/json_text.hpp"

namespace troupe {

namespace {

using nlohmann::json;

struct dtype_row {
  std::string_view name;
  tensor_dtype dtype;
  int64_t bytes;
};
constexpr dtype_row dtypes[] = {
    {"BOOL", tensor_dtype::boolean, 1},
    {"U8", tensor_dtype::u8, 1},
    {"I8", tensor_dtype::i8, 1},
    {"F8_E5M2", tensor_dtype::f8_e5m2, 1},
    {"F8_E4M3", tensor_dtype::f8_e4m3, 1},
    {"F8_E8M0", tensor_dtype::f8_e8m0, 1},
    {"F8_E4M3FNUZ", tensor_dtype::f8_e4m3fnuz, 1},
    {"F8_E5M2FNUZ", tensor_dtype::f8_e5m2fnuz, 1},
    {"I16", tensor_dtype::i16, 2},
    {"U16", tensor_dtype::u16, 2},
    {"F16", tensor_dtype::f16, 2},
    {"BF16", tensor_dtype::bf16, 2},
    {"I32", tensor_dtype::i32, 4},
    {"U32", tensor_dtype::u32, 4},
    {"F32", tensor_dtype::f32, 4},
    {"I64", tensor_dtype::i64, 8},
    {"U64", tensor_dtype::u64, 8},
    {"F64", tensor_dtype::f64, 8},
    {"C64", tensor_dtype::c64, 8},
};
constexpr std::string_view sub_byte_dtypes[] = {"F4", "F6_E2M3", "F6_E3M2"};

const dtype_row& row_of(tensor_dtype dtype) {
  for (const dtype_row& row : dtypes) {
    if (row.dtype == dtype) return row;
  }
  check_failed("dtype", "every dtype has a row", __FILE__, __LINE__);
}

// Builds the entries from the parser's events, without a tree of the whole header: its size is up to
// the file. The grammar is {name: {"dtype": string, "shape": [n...], "data_offsets": [n, n]}...}.
class header_reader : public nlohmann::json_sax<json> {
 public:
  std::vector<safetensors_entry> entries;
  std::optional<error> failure;

  bool null() override { return misplaced("null"); }
  bool boolean(bool) override { return misplaced("a boolean"); }
  bool number_integer(number_integer_t) override { return misplaced("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return misplaced("a fraction"); }
  bool binary(binary_t&) override { return misplaced("binary data"); }
  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == place::shape) {
      if (shape_.size() == safetensors_rank_max) return refuse("has too many dimensions");
      shape_.push_back(value);
      return true;
    }
    if (place_ == place::offsets) {
      if (offsets_.size() == 2) return refuse("has more than two \"data_offsets\"");
      offsets_.push_back(value);
      return true;
    }
    return misplaced("a number");
  }
  bool string(string_t& value) override {
    if (place_ == place::metadata) return true;
    if (place_ != place::entry || field_ != field::dtype) return misplaced("a string");
    field_ = field::none;
    for (const dtype_row& row : dtypes) {
      if (row.name == value) entries.back().dtype = row.dtype;
      if (row.name == value) return true;
    }
    const bool sub_byte = std::count(std::begin(sub_byte_dtypes), std::end(sub_byte_dtypes), value) > 0;
    return refuse((sub_byte ? "has the unsupported dtype " : "has the unknown dtype ") + shown(value),
                  sub_byte ? errc::unsupported : errc::malformed);
  }
  bool start_object(size_t) override {
    switch (place_) {
      case place::before: place_ = place::names; return true;
      case place::name_value: place_ = place::entry; return true;
      case place::metadata_value: place_ = place::metadata; return true;
      default: return misplaced("an object");
    }
  }
  bool end_object() override {
    if (place_ == place::names) {
      place_ = place::after;
      return true;
    }
    const bool complete = place_ == place::metadata || finish_entry();
    place_ = place::names;
    return complete;
  }
  bool start_array(size_t) override {
    if (place_ == place::entry && field_ == field::shape) {
      place_ = place::shape;
    } else if (place_ == place::entry && field_ == field::offsets) {
      place_ = place::offsets;
    } else {
      return misplaced("an array");
    }
    field_ = field::none;
    return true;
  }
  bool end_array() override {
    place_ = place::entry;
    return true;
  }
  bool key(string_t& name) override {
    if (place_ == place::metadata) return true;
    if (place_ == place::entry) return start_field(name);
    if (name == "__metadata__") {
      subject_ = "\"__metadata__\"";
      if (std::exchange(has_metadata_, true)) return refuse("comes twice");
      place_ = place::metadata_value;
      return true;
    }
    subject_ = "the tensor " + shown(name);
    entries.emplace_back().name = std::move(name);
    shape_.clear();
    offsets_.clear();
    seen_ = 0;
    place_ = place::name_value;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    if (!failure) {
      failure = error{errc::malformed, "the header is not valid JSON (near its byte " + std::to_string(position) + ")"};
    }
    return false;
  }

 private:
  enum class place { before, names, name_value, entry, shape, offsets, metadata_value, metadata, after };
  enum class field : unsigned { none = 0, dtype = 1, shape = 2, offsets = 4 };

  bool refuse(std::string complaint, errc code = errc::malformed) {
    if (!failure) failure = error{code, subject_ + " " + std::move(complaint)};
    return false;
  }
  bool misplaced(std::string what) { return refuse("has " + std::move(what) + " where the format allows none"); }

  bool start_field(const std::string& name) {
    if (field_ != field::none) return misplaced("a key");
    field_ = name == "dtype"          ? field::dtype
             : name == "shape"        ? field::shape
             : name == "data_offsets" ? field::offsets
                                      : field::none;
    const auto bit = static_cast<unsigned>(field_);
    if (bit == 0) return refuse("has the unknown field " + shown(name));
    if ((seen_ & bit) != 0) return refuse("has the field " + shown(name) + " twice");
    seen_ |= bit;
    return true;
  }

  bool finish_entry() {
    if (seen_ != 7) return refuse("lacks one of \"dtype\", \"shape\" and \"data_offsets\"");
    if (offsets_.size() != 2) return refuse("needs two \"data_offsets\"");
    safetensors_entry& entry = entries.back();
    entry.begin = offsets_[0];
    entry.end = offsets_[1];
    if (entry.begin > entry.end) return refuse("ends before it begins");
    uint64_t bytes = static_cast<uint64_t>(size_of(entry.dtype));
    // Dimensions are bounded even where a zero among them makes the product small.
    for (const uint64_t extent : shape_) {
      if (extent > static_cast<uint64_t>(INT64_MAX)) return refuse("has a dimension that is too large");
      if (__builtin_mul_overflow(bytes, extent, &bytes)) return refuse("has a shape whose size overflows");
      entry.shape.push_back(static_cast<int64_t>(extent));
    }
    if (bytes == entry.end - entry.begin) return true;
    return refuse("has " + std::to_string(entry.end - entry.begin) + " bytes of data, but its dtype and shape need " +
                  std::to_string(bytes));
  }

  place place_ = place::before;
  field field_ = field::none;
  std::string subject_ = "the header";
  std::vector<uint64_t> shape_;
  std::vector<uint64_t> offsets_;
  unsigned seen_ = 0;  // fields of the entry, as bits of `field`
  bool has_metadata_ = false;
};

// Data ranges, relative to the data section, must tile it. Sorts the entries by range.
result<void> check_layout(std::vector<safetensors_entry>& entries, uint64_t data_bytes) {
  std::sort(entries.begin(), entries.end(), [](const safetensors_entry& a, const safetensors_entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t covered = 0;
  for (const safetensors_entry& entry : entries) {
    if (entry.begin != covered) {
      return error{errc::malformed, "the data of tensor " + shown(entry.name) + " begins at byte " +
                                        std::to_string(entry.begin) +
                                        (entry.begin < covered ? ", inside" : ", with a gap after") +
                                        " the tensor before it, which ends at " + std::to_string(covered)};
    }
    covered = entry.end;
  }
  if (covered == data_bytes) return {};
  return error{errc::malformed, "the header describes " + std::to_string(covered) +
                                    " bytes of data, but the file holds " + std::to_string(data_bytes) +
                                    "; the file is probably incomplete"};
}

result<void> check_names(const std::vector<safetensors_entry>& entries) {
  std::vector<std::string_view> names;
  names.reserve(entries.size());
  for (const safetensors_entry& entry : entries) names.push_back(entry.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return {};
  return error{errc::malformed, "the tensor " + shown(*twice) + " comes twice"};
}

}  // namespace

std::string_view name(tensor_dtype dtype) { return row_of(dtype).name; }
int64_t size_of(tensor_dtype dtype) { return row_of(dtype).bytes; }

result<std::vector<safetensors_entry>> parse_safetensors_header(std::span<const std::byte> file) {
  constexpr uint64_t prefix = 8;
  if (file.size() < prefix) return error{errc::malformed, "the file is too short for a safetensors header"};
  uint64_t length = 0;
  for (size_t i = prefix; i-- > 0;) length = length << 8 | static_cast<uint64_t>(file[i]);
  if (length > safetensors_header_bytes_max || length > file.size() - prefix) {
    return error{errc::malformed,
                 "the header claims " + std::to_string(length) + " bytes, more than the file or the format allows"};
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + prefix, length);
  if (text.empty() || text[0] != '{') return error{errc::malformed, "the header does not begin with '{'"};

  header_reader reader;
  try {
    const bool complete = json::sax_parse(text.begin(), text.end(), &reader);
    if (!complete && !reader.failure) reader.failure = error{errc::malformed, "the header is not valid JSON"};
  } catch (const std::exception&) {
    return error{errc::malformed, "the header is too large to read"};
  }
  if (reader.failure) return *reader.failure;
  if (const auto unique = check_names(reader.entries); !unique) return unique.failure();
  const uint64_t data_start = prefix + length;
  if (const auto tiled = check_layout(reader.entries, file.size() - data_start); !tiled) return tiled.failure();
  for (safetensors_entry& entry : reader.entries) {
    entry.begin += data_start;
    entry.end += data_start;
  }
  return std::move(reader.entries);
}

}  // namespace troupe
