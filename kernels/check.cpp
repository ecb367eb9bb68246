#include "kernels/check.hpp"

#include <cstdio>
#include <cstdlib>

namespace troupe::kernels {

void broken(const char* sentence) {
  std::fprintf(stderr, "kernels: %s\n", sentence);
  std::abort();
}

}  // namespace troupe::kernels
