// The lane operations of AVX-512: 16 lanes are one register. Everything is in an unnamed namespace, so that no file
// links code made for another's instruction set.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/lanes.hpp"

// So that the header also compiles where the command line does not enable these, as every header must.
#if !defined(__clang__)
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq")
#endif

namespace troupe::kernels {
namespace {

struct avx512 {
  struct reg {
    __m512 v;
  };
  struct ints {
    __m512i v;
  };
  static constexpr int many_rows = 8, panels_of_many = 2;
  static constexpr int few_rows = 4, panels_of_few = 4;
  static constexpr int attention_heads = 8;

  static __mmask16 first(int count) {
    return count >= lane_count ? __mmask16{0xffff} : static_cast<__mmask16>((1U << count) - 1);
  }

  static reg broadcast(float x) { return {_mm512_set1_ps(x)}; }
  static reg zero() { return {_mm512_setzero_ps()}; }
  static reg load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static reg load_part(const float* p, int count) { return {_mm512_maskz_loadu_ps(first(count), p)}; }
  static reg load_bf16(const uint16_t* p) {
    const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16))};
  }
  // Requires: no NaN code (the packer keeps those weights as FP32). See e4m3_decode.
  static reg load_e4m3(const uint8_t* p) {
    const __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m512i magnitude = _mm512_slli_epi32(_mm512_and_si512(code, _mm512_set1_epi32(0x7f)), 20);
    const __m512i sign = _mm512_slli_epi32(_mm512_and_si512(code, _mm512_set1_epi32(0x80)), 24);
    const __m512 scaled = _mm512_mul_ps(_mm512_castsi512_ps(magnitude), _mm512_set1_ps(0x1p120F));
    return {_mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(scaled), sign))};
  }
  // bf16_round: nearest even; a NaN keeps its sign and payload and becomes quiet.
  static __m256i rounded(reg a) {
    const __m512i bits = _mm512_castps_si512(a.v);
    const __m512i upper = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    const __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    __m512i result = _mm512_srli_epi32(_mm512_add_epi32(bits, bias), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
    result = _mm512_mask_or_epi32(result, nan, upper, _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(result);
  }
  static void store_bf16(uint16_t* p, reg a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), rounded(a)); }
  static void store(float* p, reg a) { _mm512_storeu_ps(p, a.v); }
  static void store_part(float* p, reg a, int count) { _mm512_mask_storeu_ps(p, first(count), a.v); }
  static reg keep(reg a, int count) { return {_mm512_maskz_mov_ps(first(count), a.v)}; }

  static reg add(reg a, reg b) { return {_mm512_add_ps(a.v, b.v)}; }
  static reg sub(reg a, reg b) { return {_mm512_sub_ps(a.v, b.v)}; }
  static reg mul(reg a, reg b) { return {_mm512_mul_ps(a.v, b.v)}; }
  static reg div(reg a, reg b) { return {_mm512_div_ps(a.v, b.v)}; }
  static reg fma(reg a, reg b, reg c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  static reg min(reg a, reg b) { return {_mm512_min_ps(a.v, b.v)}; }
  static reg max(reg a, reg b) { return {_mm512_max_ps(a.v, b.v)}; }

  static __m128 lower(__m256 a) { return _mm256_castps256_ps128(a); }
  static __m128 upper(__m256 a) { return _mm256_extractf128_ps(a, 1); }
  static float reduce_add(reg a) {
    const __m256 by_8 = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    const __m128 by_4 = _mm_add_ps(lower(by_8), upper(by_8));
    const __m128 by_2 = _mm_add_ps(by_4, _mm_movehl_ps(by_4, by_4));
    return _mm_cvtss_f32(_mm_add_ss(by_2, _mm_movehdup_ps(by_2)));
  }
  static float reduce_max(reg a) {
    const __m256 by_8 = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    const __m128 by_4 = _mm_max_ps(lower(by_8), upper(by_8));
    const __m128 by_2 = _mm_max_ps(by_4, _mm_movehl_ps(by_4, by_4));
    return _mm_cvtss_f32(_mm_max_ss(by_2, _mm_movehdup_ps(by_2)));
  }
  // The tree of reduce_add for four registers at once: each step halves the lanes of all four.
  static void reduce_add_2x2(reg a, reg b, reg c, reg d, float* ab, float* cd) {
    const __m512 ab_8 = _mm512_add_ps(_mm512_shuffle_f32x4(a.v, b.v, 0x44), _mm512_shuffle_f32x4(a.v, b.v, 0xee));
    const __m512 cd_8 = _mm512_add_ps(_mm512_shuffle_f32x4(c.v, d.v, 0x44), _mm512_shuffle_f32x4(c.v, d.v, 0xee));
    const __m512 by_4 = _mm512_add_ps(_mm512_shuffle_f32x4(ab_8, cd_8, 0x88), _mm512_shuffle_f32x4(ab_8, cd_8, 0xdd));
    const __m512 by_2 = _mm512_add_ps(by_4, _mm512_permute_ps(by_4, 0x4e));
    const __m512 by_1 = _mm512_add_ps(by_2, _mm512_permute_ps(by_2, 0xb1));
    const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m128 sums = _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, by_1));
    _mm_storel_pi(reinterpret_cast<__m64*>(ab), sums);
    _mm_storeh_pi(reinterpret_cast<__m64*>(cd), sums);
  }
  static bool any_equal(reg a, reg b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ) != 0; }

  static ints broadcast_int(uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
  static ints bits(reg a) { return {_mm512_castps_si512(a.v)}; }
  static reg value(ints a) { return {_mm512_castsi512_ps(a.v)}; }
  static ints add(ints a, ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
  static ints sub(ints a, ints b) { return {_mm512_sub_epi32(a.v, b.v)}; }
  static ints halve(ints a) { return {_mm512_srai_epi32(a.v, 1)}; }
  static ints shift_to_exponent(ints a) { return {_mm512_slli_epi32(a.v, 23)}; }
};

}  // namespace
}  // namespace troupe::kernels

#if !defined(__clang__)
#pragma GCC pop_options
#endif
