// The order of inputs (amx_layout.hpp) in vector registers. For the object files of profile amx_bf16 alone (see
// amx_tiles.hpp).
#pragma once

#include <immintrin.h>

#include "kernels/cpu/amx_layout.hpp"

// So that the header also compiles where the command line does not enable these, as every header must.
#if !defined(__clang__)
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq")
#endif

namespace troupe::kernels {
namespace {

// From the straight order, 32 or 16 inputs of a row.
template <bool Chained>
[[gnu::always_inline]] inline __m512i inputs_in_order(__m512i row) {
  if constexpr (!Chained) return row;
  return _mm512_shuffle_epi8(
      row, _mm512_broadcast_i32x4(_mm_setr_epi8(4, 5, 0, 1, 6, 7, 2, 3, 12, 13, 8, 9, 14, 15, 10, 11)));
}
template <bool Chained>
[[gnu::always_inline]] inline __m256i inputs_in_order(__m256i row) {
  if constexpr (!Chained) return row;
  return _mm512_castsi512_si256(inputs_in_order<true>(_mm512_castsi256_si512(row)));
}

// Back to it, 16 FP32 values.
template <bool Chained>
[[gnu::always_inline]] inline __m512 values_straight(__m512 values) {
  if constexpr (!Chained) return values;
  return _mm512_permute_ps(values, 1 | 3 << 2 | 0 << 4 | 2 << 6);
}

// From the straight order, two rows of 16 pairs, each of one column.
template <bool Chained>
[[gnu::always_inline]] inline void pairs_in_order(__m512i& first, __m512i& second) {
  if constexpr (!Chained) return;
  constexpr __mmask32 lower_halves = 0x55555555;
  const __m512i even = _mm512_mask_blend_epi16(lower_halves, _mm512_slli_epi32(first, 16), second);
  second = _mm512_mask_blend_epi16(lower_halves, first, _mm512_srli_epi32(second, 16));
  first = even;
}

}  // namespace
}  // namespace troupe::kernels

#if !defined(__clang__)
#pragma GCC pop_options
#endif
