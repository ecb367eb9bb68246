// FP8 E4M3 ("fn"): 1 sign, 4 exponent (bias 7), 3 mantissa bits; no infinities; 0x7F is NaN.
#include <bit>
#include <cmath>

#include "kernels/compute.hpp"

namespace troupe::kernels {

float e4m3_decode(uint8_t code) {
  const uint32_t sign = uint32_t{code & 0x80U} << 24;
  const uint32_t magnitude = code & 0x7fU;
  if (magnitude == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000U);
  // The code's exponent and mantissa, put where FP32 has them, read 2^(127 - 7) too small. The
  // multiplication repairs that and normalises subnormals; it is exact.
  const float scaled = std::bit_cast<float>(magnitude << 20) * 0x1p120F;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | sign);
}

uint8_t e4m3_encode(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80U);
  const float magnitude = std::bit_cast<float>(bits & 0x7fffffffU);
  if (magnitude != magnitude) return sign | 0x7fU;
  if (magnitude >= 448) return sign | 0x7eU;
  if (magnitude < 0x1p-6F) {
    // Subnormal: steps of 2^-9. Adding 2^14 leaves FP32 exactly that resolution (23 bits below 2^14), so the
    // addition rounds to nearest even; a carry to 8 is the code of the smallest normal.
    const float shifted = magnitude + 0x1p14F;
    return sign | static_cast<uint8_t>(std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0x1p14F));
  }
  // Normal: keep 3 mantissa bits of 23, round to nearest even, move the exponent's bias from 127 to 7.
  const uint32_t magnitude_bits = std::bit_cast<uint32_t>(magnitude);
  const uint32_t odd = (magnitude_bits >> 20) & 1U;
  const uint32_t rounded = (magnitude_bits + 0x7ffffU + odd) >> 20;
  return sign | static_cast<uint8_t>(rounded - ((127U - 7U) << 3));
}

float quantise_tile(const float* x, int count, uint8_t* codes) {
  float amax = 1e-4F;  // keeps an all-zero tile from dividing by zero
  for (int i = 0; i < count; ++i) {
    const float magnitude = std::fabs(x[i]);
    if (magnitude > amax) amax = magnitude;
  }
  const float scale = amax / 448;
  for (int i = 0; i < count; ++i) codes[i] = e4m3_encode(x[i] / scale);
  return scale;
}

}  // namespace troupe::kernels
