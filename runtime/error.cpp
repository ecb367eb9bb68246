#include "runtime/error.hpp"

#include <cstdio>
#include <cstdlib>

namespace troupe {

std::string_view name(errc code) {
  switch (code) {
    case errc::invalid_argument: return "invalid_argument";
    case errc::not_found: return "not_found";
    case errc::malformed: return "malformed";
    case errc::unsupported: return "unsupported";
    case errc::exhausted: return "exhausted";
    case errc::unavailable: return "unavailable";
    case errc::cancelled: return "cancelled";
    case errc::internal: return "internal";
  }
  return "unknown";
}

void check_failed(const char* condition, std::string_view what, const char* file, int line) {
  std::fprintf(stderr, "check failed: %.*s (%s) at %s:%d\n", static_cast<int>(what.size()), what.data(), condition,
               file, line);
  std::fflush(stderr);
  std::abort();
}

}  // namespace troupe
