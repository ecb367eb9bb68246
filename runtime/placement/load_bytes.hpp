// Readers of the single forms that a load comes in; load_files.hpp is what to use. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/error.hpp"
#include "runtime/placement/load.hpp"

namespace troupe {

// An array of counts as other systems write it: [layers, experts] or [steps, layers, experts].
struct count_array {
  std::vector<uint64_t> shape;
  std::vector<uint64_t> counts;
};

// Counts that a float may be: finite, not negative, below 2^53. Rounded to the nearest whole number.
result<uint64_t> whole_count(double value, const std::string& source);

result<load_history> load_from_csv(const std::string& text, const std::string& source);
result<load_history> load_from_binary(const std::string& bytes, const std::string& source);
result<count_array> counts_from_json(const std::string& text, const std::string& source);
result<count_array> counts_from_npy(std::string_view bytes, const std::string& source);
// A file of torch.save: the tensor `logical_count` of the dictionary that it holds, or the tensor that it is.
// Only what such a file needs of pickle is understood, and nothing is executed.
result<count_array> counts_from_torch(std::string_view bytes, const std::string& source);

// Raw little-endian numbers of one dtype: `kind` is i, u or f. Requires: bytes.size() is a multiple of `size`.
result<std::vector<uint64_t>> counts_from_raw(std::string_view bytes, char kind, size_t size,
                                              const std::string& source);

// Fails: malformed when the shape is no load. `recorded`: leave out empty steps and layers.
result<load_history> load_from_counts(count_array counts, bool recorded, const std::string& source);

constexpr uint64_t load_entries_max = uint64_t{1} << 28;  // rows of all windows and sources

}  // namespace troupe
