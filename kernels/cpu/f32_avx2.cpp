// Profile f32 with AVX2 and FMA: 16 lanes are two registers, lanes 0-7 and 8-15.
#include <immintrin.h>

#include "kernels/cpu/f32_table.hpp"

namespace troupe::kernels {
namespace {

struct avx2 {
  struct reg {
    __m256 a, b;
  };
  struct ints {
    __m256i a, b;
  };
  static constexpr int many_rows = 6, panels_of_many = 1;  // 12 accumulators of 16 registers
  static constexpr int few_rows = 2, panels_of_few = 2;
  static constexpr int attention_heads = 2;

  static reg broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static reg zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static reg load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static reg load_part(const float* p, int count) {
    if (count >= lane_count) return load(p);
    float full[lane_count] = {};
    for (int l = 0; l < count; ++l) full[l] = p[l];
    return load(full);
  }
  static __m256 widen(const uint16_t* p) {
    const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
  }
  static reg load_bf16(const uint16_t* p) { return {widen(p), widen(p + 8)}; }
  // Requires: no NaN code (the packer keeps those weights as FP32). See e4m3_decode.
  static __m256 decode(const uint8_t* p) {
    const __m256i code = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    const __m256i magnitude = _mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(0x7f)), 20);
    const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(0x80)), 24);
    const __m256 scaled = _mm256_mul_ps(_mm256_castsi256_ps(magnitude), _mm256_set1_ps(0x1p120F));
    return _mm256_or_ps(scaled, _mm256_castsi256_ps(sign));
  }
  static reg load_e4m3(const uint8_t* p) { return {decode(p), decode(p + 8)}; }
  static __m256i rounded(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i upper = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i result = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
    const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
    const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    return _mm256_blendv_epi8(result, quiet, _mm256_castps_si256(nan));
  }
  static void store_bf16(uint16_t* p, reg x) {
    const __m256i both = _mm256_packus_epi32(rounded(x.a), rounded(x.b));  // in lanes of 128 bits
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(both, 0xd8));
  }
  static void store(float* p, reg x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
  }
  static void store_part(float* p, reg x, int count) {
    if (count >= lane_count) return store(p, x);
    float full[lane_count];
    store(full, x);
    for (int l = 0; l < count; ++l) p[l] = full[l];
  }
  static reg keep(reg x, int count) {
    if (count >= lane_count) return x;
    float full[lane_count];
    store(full, x);
    return load_part(full, count);
  }

  static reg add(reg x, reg y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  static reg sub(reg x, reg y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
  static reg mul(reg x, reg y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  static reg div(reg x, reg y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
  static reg fma(reg x, reg y, reg z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
  static reg min(reg x, reg y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
  static reg max(reg x, reg y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }

  static float reduce_add(reg x) {
    const __m256 by_8 = _mm256_add_ps(x.a, x.b);
    const __m128 by_4 = _mm_add_ps(_mm256_castps256_ps128(by_8), _mm256_extractf128_ps(by_8, 1));
    const __m128 by_2 = _mm_add_ps(by_4, _mm_movehl_ps(by_4, by_4));
    return _mm_cvtss_f32(_mm_add_ss(by_2, _mm_movehdup_ps(by_2)));
  }
  static float reduce_max(reg x) {
    const __m256 by_8 = _mm256_max_ps(x.a, x.b);
    const __m128 by_4 = _mm_max_ps(_mm256_castps256_ps128(by_8), _mm256_extractf128_ps(by_8, 1));
    const __m128 by_2 = _mm_max_ps(by_4, _mm_movehl_ps(by_4, by_4));
    return _mm_cvtss_f32(_mm_max_ss(by_2, _mm_movehdup_ps(by_2)));
  }
  static void reduce_add_2x2(reg x, reg y, reg z, reg w, float* xy, float* zw) {
    xy[0] = reduce_add(x);
    xy[1] = reduce_add(y);
    zw[0] = reduce_add(z);
    zw[1] = reduce_add(w);
  }
  static bool any_equal(reg x, reg y) {
    const __m256 equal = _mm256_or_ps(_mm256_cmp_ps(x.a, y.a, _CMP_EQ_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_EQ_OQ));
    return _mm256_movemask_ps(equal) != 0;
  }

  static ints broadcast_int(uint32_t x) {
    return {_mm256_set1_epi32(static_cast<int>(x)), _mm256_set1_epi32(static_cast<int>(x))};
  }
  static ints bits(reg x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
  static reg value(ints x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
  static ints add(ints x, ints y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
  static ints sub(ints x, ints y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
  static ints halve(ints x) { return {_mm256_srai_epi32(x.a, 1), _mm256_srai_epi32(x.b, 1)}; }
  static ints shift_to_exponent(ints x) { return {_mm256_slli_epi32(x.a, 23), _mm256_slli_epi32(x.b, 23)}; }
};

}  // namespace

const lane_kernels& avx2_lanes() {
  static constexpr lane_kernels table = make_lane_kernels<avx2>(isa::avx2);
  return table;
}

}  // namespace troupe::kernels
