#include "kernels/math_functions.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/compute.hpp"
#include "kernels/cpu/exp.hpp"

namespace troupe::kernels {
namespace {

// Adding and subtracting this rounds a double below 2^51 to the nearest integer.
constexpr double round_magic = 0x1.8p52;

// Taylor's series on [-pi/4, pi/4]; the first term left out is below 1e-19 there.
double sine_series(double r) {
  const double z = r * r;
  double sum = 1.0 / 355687428096000.0;  // 17!
  sum = sum * z - 1.0 / 1307674368000.0;
  sum = sum * z + 1.0 / 6227020800.0;
  sum = sum * z - 1.0 / 39916800.0;
  sum = sum * z + 1.0 / 362880.0;
  sum = sum * z - 1.0 / 5040.0;
  sum = sum * z + 1.0 / 120.0;
  sum = sum * z - 1.0 / 6.0;
  return r + r * z * sum;
}

double cosine_series(double r) {
  const double z = r * r;
  double sum = -1.0 / 6402373705728000.0;  // 18!
  sum = sum * z + 1.0 / 20922789888000.0;
  sum = sum * z - 1.0 / 87178291200.0;
  sum = sum * z + 1.0 / 479001600.0;
  sum = sum * z - 1.0 / 3628800.0;
  sum = sum * z + 1.0 / 40320.0;
  sum = sum * z - 1.0 / 720.0;
  sum = sum * z + 1.0 / 24.0;
  sum = sum * z - 0.5;
  return 1.0 + z * sum;
}

// One lane of the operations that `exp_lanes` is written in; defines what every vector computes.
struct one_lane {
  struct reg {
    float v;
  };
  struct ints {
    uint32_t v;
  };
  static reg broadcast(float x) { return {x}; }
  static reg fma(reg a, reg b, reg c) { return {std::fma(a.v, b.v, c.v)}; }
  static reg mul(reg a, reg b) { return {a.v * b.v}; }
  static reg sub(reg a, reg b) { return {a.v - b.v}; }
  static reg min(reg a, reg b) { return {a.v < b.v ? a.v : b.v}; }
  static reg max(reg a, reg b) { return {a.v > b.v ? a.v : b.v}; }
  static ints broadcast_int(uint32_t x) { return {x}; }
  static ints bits(reg a) { return {std::bit_cast<uint32_t>(a.v)}; }
  static reg value(ints a) { return {std::bit_cast<float>(a.v)}; }
  static ints add(ints a, ints b) { return {a.v + b.v}; }
  static ints sub(ints a, ints b) { return {a.v - b.v}; }
  static ints halve(ints a) { return {static_cast<uint32_t>(static_cast<int32_t>(a.v) >> 1)}; }
  static ints shift_to_exponent(ints a) { return {a.v << 23}; }
};

}  // namespace

void sine_cosine(double x, double& sine, double& cosine) {
  // Cody and Waite: pi/2 in three parts of 33 bits, so that their products with n (at most 20 bits) are exact.
  constexpr double two_over_pi = 0x1.45f306dc9c883p-1;
  constexpr double part_1 = 0x1.921fb544p0;
  constexpr double part_2 = 0x1.0b4611a6p-34;
  constexpr double part_3 = 0x1.3198a2e037073p-69;
  const double n = (x * two_over_pi + round_magic) - round_magic;
  const double r = ((x - n * part_1) - n * part_2) - n * part_3;
  const double s = sine_series(r);
  const double c = cosine_series(r);
  switch (static_cast<int64_t>(n) & 3) {
    case 0: sine = s, cosine = c; break;
    case 1: sine = c, cosine = -s; break;
    case 2: sine = -s, cosine = -c; break;
    default: sine = -c, cosine = s; break;
  }
}

double exp_f64(double x) {
  constexpr double log2_e = 0x1.71547652b82fep0;
  constexpr double ln2_high = 0x1.62e42feep-1;  // 32 bits: its product with n is exact
  constexpr double ln2_low = 0x1.a39ef35793c76p-33;
  const double n = (x * log2_e + round_magic) - round_magic;
  const double r = (x - n * ln2_high) - n * ln2_low;
  double sum = 1.0 / 6227020800.0;  // 13!
  double factorial = 6227020800.0;
  for (int i = 12; i >= 0; --i) {
    factorial /= i + 1;
    sum = sum * r + 1.0 / factorial;
  }
  const auto exponent = static_cast<int64_t>(n);
  return sum * std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

double log_f64(double x) {
  constexpr double ln2_high = 0x1.62e42feep-1;
  constexpr double ln2_low = 0x1.a39ef35793c76p-33;
  // x = m * 2^e with m in [sqrt(1/2), sqrt(2)).
  const auto bits = std::bit_cast<uint64_t>(x);
  constexpr uint64_t sqrt_half = 0x3fe6a09e667f3bcd;
  const uint64_t shifted = bits - sqrt_half;
  const auto e = static_cast<double>(static_cast<int64_t>(shifted) >> 52);
  const double m = std::bit_cast<double>((shifted & 0xfffffffffffffU) + sqrt_half);
  // log m = 2 artanh s, s = (m - 1) / (m + 1), |s| <= 0.172.
  const double s = (m - 1) / (m + 1);
  const double z = s * s;
  double sum = 0;
  for (int i = 21; i >= 3; i -= 2) sum = (sum + 2.0 / i) * z;
  return e * ln2_high + (2 * s + (s * sum + e * ln2_low));
}

float exp_f32(float x) { return exp_lanes<one_lane>({x}).v; }

float log_f32(float x) {
  if (x != x || x < 0) return std::numeric_limits<float>::quiet_NaN();
  if (x == 0) return -std::numeric_limits<float>::infinity();
  if (x > std::numeric_limits<float>::max()) return x;
  return static_cast<float>(log_f64(static_cast<double>(x)));  // every FP32 is a normal double
}

}  // namespace troupe::kernels
