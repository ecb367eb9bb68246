// exp for one lane or many: one sequence of operations, so that every vector width and the plain
// scalar give the same bits.
//
// `V` is a set of lane operations, defined in an unnamed namespace by each object file that uses this,
// so that code made with one file's instruction set is never linked into another.
#pragma once

#include <cstdint>

namespace troupe::kernels {

// exp(x), error below 1.5 ulp. Overflows to infinity, underflows through denormals to 0, keeps NaN.
template <class V>
[[gnu::always_inline]] inline typename V::reg exp_lanes(typename V::reg x) {
  // x = n ln 2 + r, |r| <= ln(2)/2; exp x = 2^n exp r. The bounds lie beyond overflow and underflow and keep n
  // within what the two factors below can express. x comes second, so that a NaN passes through.
  x = V::min(V::broadcast(89.0F), x);
  x = V::max(V::broadcast(-105.0F), x);
  // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits of the sum.
  const auto magic = V::broadcast(0x1.8p23F);
  const auto shifted = V::fma(x, V::broadcast(0x1.715476p0F), magic);
  const auto n = V::sub(shifted, magic);
  auto r = V::fma(n, V::broadcast(-0x1.62e43p-1F), x);
  r = V::fma(n, V::broadcast(0x1.05c61p-29F), r);
  // Taylor's series; the first term left out is below 6e-9.
  auto sum = V::broadcast(1.0F / 5040);
  sum = V::fma(sum, r, V::broadcast(1.0F / 720));
  sum = V::fma(sum, r, V::broadcast(1.0F / 120));
  sum = V::fma(sum, r, V::broadcast(1.0F / 24));
  sum = V::fma(sum, r, V::broadcast(1.0F / 6));
  sum = V::fma(sum, r, V::broadcast(0.5F));
  sum = V::fma(sum, r, V::broadcast(1.0F));
  sum = V::fma(sum, r, V::broadcast(1.0F));
  // 2^n as two factors: one alone cannot reach denormals or 2^128.
  const auto exponent = V::sub(V::bits(shifted), V::bits(magic));
  const auto first = V::halve(exponent);
  const auto second = V::sub(exponent, first);
  const auto bias = V::broadcast_int(127);
  sum = V::mul(sum, V::value(V::shift_to_exponent(V::add(first, bias))));
  return V::mul(sum, V::value(V::shift_to_exponent(V::add(second, bias))));
}

}  // namespace troupe::kernels
