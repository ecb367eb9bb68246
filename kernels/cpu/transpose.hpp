// A transpose in registers, for the packers. Baseline code: every machine may pack.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace troupe::kernels {

// out[r][c] = word r of row c, for c and r in [0, 16): 16 rows of 64 bytes, `stride` bytes apart and perhaps
// unaligned, become one tile of 1,024 bytes.
[[gnu::always_inline]] inline void transpose_words(const std::byte* rows, int64_t stride, std::byte* out) {
  using words [[gnu::vector_size(16)]] = uint32_t;
  const auto load = [&](int row, int at) {
    words four;
    std::memcpy(&four, rows + row * stride + at * int64_t{4}, sizeof four);
    return four;
  };
  for (int c = 0; c < 16; c += 4) {
    for (int r = 0; r < 16; r += 4) {
      const words a = load(c, r);
      const words b = load(c + 1, r);
      const words d = load(c + 2, r);
      const words e = load(c + 3, r);
      const words ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
      const words ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      const words de_low = __builtin_shufflevector(d, e, 0, 4, 1, 5);
      const words de_high = __builtin_shufflevector(d, e, 2, 6, 3, 7);
      const words result[4] = {
          __builtin_shufflevector(ab_low, de_low, 0, 1, 4, 5), __builtin_shufflevector(ab_low, de_low, 2, 3, 6, 7),
          __builtin_shufflevector(ab_high, de_high, 0, 1, 4, 5), __builtin_shufflevector(ab_high, de_high, 2, 3, 6, 7)};
      for (int i = 0; i < 4; ++i) std::memcpy(out + (r + i) * 64 + c * 4, &result[i], sizeof(words));
    }
  }
}

}  // namespace troupe::kernels
