// BF16 rows: the upper half of an FP32, rounded to nearest even.
#include <bit>

#include "kernels/compute.hpp"
#include "kernels/cpu/lanes.hpp"

namespace troupe::kernels {

uint16_t bf16_round(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  // Rounding could carry a NaN into infinity; instead keep its sign and payload and make it quiet.
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<uint16_t>((bits >> 16) | 0x40U);
  const uint32_t odd = (bits >> 16) & 1U;
  return static_cast<uint16_t>((bits + 0x7fffU + odd) >> 16);
}

float bf16_widen(uint16_t value) { return std::bit_cast<float>(uint32_t{value} << 16); }

void bf16_round_row(const float* x, uint16_t* out, int count) { best_lanes().bf16_round_row(x, out, count); }

void bf16_widen_row(const uint16_t* x, float* out, int count) { best_lanes().bf16_widen_row(x, out, count); }

}  // namespace troupe::kernels
