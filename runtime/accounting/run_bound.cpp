#include "runtime/accounting/run_bound.hpp"

#include <algorithm>

namespace troupe {

uint64_t run_times::bound_ns() const { return std::max({device_ns, core_ns, link_ns, chain_ns}); }

const char* run_times::bound_by() const {
  const uint64_t most = bound_ns();
  if (most == device_ns) return "device";
  if (most == core_ns) return "core";
  return most == link_ns ? "link" : "chain";
}

double run_times::efficiency() const {
  return active_ns == 0 ? 0 : static_cast<double>(bound_ns()) / static_cast<double>(active_ns);
}

run_times between(const run_times& earlier, const run_times& later) {
  const auto minus = [](uint64_t a, uint64_t b) { return a > b ? a - b : 0; };
  return {minus(later.active_ns, earlier.active_ns), minus(later.device_ns, earlier.device_ns),
          minus(later.core_ns, earlier.core_ns), minus(later.link_ns, earlier.link_ns),
          minus(later.chain_ns, earlier.chain_ns)};
}

run_times slowest(const run_times& a, const run_times& b) {
  return {std::max(a.active_ns, b.active_ns), std::max(a.device_ns, b.device_ns), std::max(a.core_ns, b.core_ns),
          std::max(a.link_ns, b.link_ns), std::max(a.chain_ns, b.chain_ns)};
}

}  // namespace troupe
