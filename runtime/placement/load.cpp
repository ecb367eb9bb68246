#include "runtime/placement/load.hpp"

namespace troupe {

std::vector<double> expected_rows(const load_history& load, double decay) {
  const size_t entries = size_t{load.layers} * load.experts;
  if (load.windows.empty()) return std::vector<double>(entries, 1.0);
  std::vector<double> expected(entries, 0.0);
  double weight = 1;
  for (size_t window = load.windows.size(); window-- > 0 && weight > 1e-9; weight *= decay) {
    const auto& rows = load.windows[window].rows;
    for (size_t i = 0; i < entries; ++i) expected[i] += weight * static_cast<double>(rows[i]);
  }
  return expected;
}

load_history even_load(uint32_t layers, uint32_t experts) {
  load_history load{layers, experts, 0, {}};
  load.windows.push_back({std::vector<uint64_t>(size_t{layers} * experts, 1), {}, {}});
  return load;
}

load_history windows_of(const load_history& load, size_t from, size_t to) {
  load_history part{load.layers, load.experts, load.sources, {}};
  part.windows.assign(load.windows.begin() + static_cast<std::ptrdiff_t>(from),
                      load.windows.begin() + static_cast<std::ptrdiff_t>(to));
  return part;
}

}  // namespace troupe
