// FP8 codes and coded BF16 into BF16 tiles. For amx_bf16's object files alone (see amx_tiles.hpp).
#pragma once

#include <immintrin.h>

#include "kernels/cpu/amx_layout.hpp"

// So that the header also compiles where the command line does not enable these, as every header must.
#if !defined(__clang__)
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,gfni")
#endif

namespace troupe::kernels {
namespace {

// The BF16 bits of each E4M3 magnitude, split into bytes for the byte permutation.
struct e4m3_tables {
  alignas(64) uint8_t low[128];
  alignas(64) uint8_t high[128];

  static constexpr uint16_t bf16_of(int magnitude) {
    const int exponent = magnitude >> 3, mantissa = magnitude & 7;
    if (magnitude == 0x7f) return 0x7fc0;
    if (exponent > 0) return static_cast<uint16_t>((exponent - 7 + 127) << 7 | mantissa << 4);
    if (mantissa == 0) return 0;
    const int top = mantissa >= 4 ? 2 : mantissa >= 2 ? 1 : 0;  // the leading bit of m * 2^-9
    return static_cast<uint16_t>((127 - 9 + top) << 7 | ((mantissa << (7 - top)) & 0x7f));
  }
  constexpr e4m3_tables() : low(), high() {
    for (int i = 0; i < 128; ++i) {
      low[i] = static_cast<uint8_t>(bf16_of(i) & 0xff);
      high[i] = static_cast<uint8_t>(bf16_of(i) >> 8);
    }
  }
};
inline constexpr e4m3_tables tables;

// Decodes one line of 64 codes to two rows of a BF16 tile: any codes.
struct e4m3_table_decoder {
  const __m512i low_0 = _mm512_load_si512(tables.low), low_1 = _mm512_load_si512(tables.low + 64);
  const __m512i high_0 = _mm512_load_si512(tables.high), high_1 = _mm512_load_si512(tables.high + 64);
  const __m512i sign_bit = _mm512_set1_epi8(static_cast<char>(0x80));

  [[gnu::always_inline]] inline void decode(__m512i code, __m512i& first, __m512i& second) const {
    const __m512i low = _mm512_permutex2var_epi8(low_0, code, low_1);
    const __m512i magnitude = _mm512_permutex2var_epi8(high_0, code, high_1);
    const __m512i high = _mm512_ternarylogic_epi32(magnitude, code, sign_bit, 0xf8);  // magnitude | (code & sign)
    first = _mm512_unpacklo_epi8(low, high);
    second = _mm512_unpackhi_epi8(low, high);
  }
};

// The same for codes of normal numbers, of which each bit of the result is one bit of the code, or not that: the
// exponent's four bits are e3 !e3 !e3 !e3 !e3 e2 e1 e0 in BF16, because 120 is added.
struct e4m3_decoder {
  // GF2P8AFFINEQB: byte 7 - i of each 8 chooses the bits of the code whose sum is bit i.
  const __m512i to_high = _mm512_set1_epi64(0x1020404040404080);
  const __m512i to_low = _mm512_set1_epi64(0x01020408);

  [[gnu::always_inline]] inline void decode(__m512i code, __m512i& first, __m512i& second) const {
    const __m512i low = _mm512_gf2p8affine_epi64_epi8(code, to_low, 0);
    const __m512i high = _mm512_gf2p8affine_epi64_epi8(code, to_high, 0x3c);
    first = _mm512_unpacklo_epi8(low, high);
    second = _mm512_unpackhi_epi8(low, high);
  }
};

// The same by shifts, which take two instructions more and none of the places in which multiply-adds run.
struct e4m3_shift_decoder {
  const __m512i bits = _mm512_set1_epi16(static_cast<short>(0x87f0)), bias = _mm512_set1_epi16(120 << 7);

  [[gnu::always_inline]] inline void decode(__m512i code, __m512i& first, __m512i& second) const {
    first = decoded(_mm512_unpacklo_epi8(_mm512_setzero_si512(), code));
    second = decoded(_mm512_unpackhi_epi8(_mm512_setzero_si512(), code));
  }

 private:
  [[gnu::always_inline]] inline __m512i decoded(__m512i upper) const {
    return _mm512_add_epi16(_mm512_and_si512(_mm512_srai_epi16(upper, 4), bits), bias);
  }
};

[[gnu::always_inline]] inline bool is_marked(const uint64_t* marks, int step) {
  return marks[step / 64] >> step % 64 & 1;
}

// What decoding a tile fetches: all that lies `near` bytes further, into the cache level that `Level` names (as
// __builtin_prefetch does: 3 the first, 1 the second), and, unless `far` is 0, a line now and then of what lies `far`
// bytes further into the second, after which the processor fetches the lines between by itself.
struct fetch_distance {
  ptrdiff_t near, far;
};

// Decodes an E4M3 tile.
template <int Level, class Decoder>
[[gnu::always_inline]] inline void decode_e4m3_tile(const Decoder& decoder, const std::byte* codes, uint16_t* out,
                                                    const fetch_distance& ahead) {
#pragma GCC unroll 8
  for (int line = 0; line < 8; ++line) {
    __builtin_prefetch(codes + line * 64 + ahead.near, 0, Level);
    if (ahead.far != 0 && line % 4 == 0) __builtin_prefetch(codes + line * 64 + ahead.far, 0, 1);
    __m512i first, second;
    decoder.decode(_mm512_loadu_si512(codes + line * 64), first, second);
    _mm512_store_si512(out + line * 64, first);
    _mm512_store_si512(out + line * 64 + 32, second);
  }
}

template <int Level>
[[gnu::noinline]] void decode_rare_tile(const std::byte* codes, uint16_t* out, const fetch_distance& ahead) {
  decode_e4m3_tile<Level>(e4m3_table_decoder(), codes, out, ahead);
}

// Decodes rows 2q and 2q + 1 of a tile of coded BF16 but for their exceptions. upper: the weight's table in each
// 16-byte lane.
[[gnu::always_inline]] inline void decode_coded_rows(__m512i upper, const std::byte* codes, int q, __m512i& first,
                                                     __m512i& second) {
  const std::byte* group = codes + q / 2 * coded_group_bytes;
  const __m512i pairs = _mm512_load_si512(group);
  const __m512i code = _mm512_and_si512(q % 2 == 0 ? pairs : _mm512_srli_epi16(pairs, 4), _mm512_set1_epi8(15));
  const __m512i low = _mm512_load_si512(group + 64 + q % 2 * 64), high = _mm512_shuffle_epi8(upper, code);
  first = _mm512_unpacklo_epi8(low, high);
  second = _mm512_unpackhi_epi8(low, high);
}

// Fetches what of a tile of coded BF16 these rows are made of.
template <int Level>
[[gnu::always_inline]] inline void fetch_coded_rows(const std::byte* codes, int q) {
  const std::byte* group = codes + q / 2 * coded_group_bytes;
  if (q % 2 == 0) __builtin_prefetch(group, 0, Level);
  __builtin_prefetch(group + 64 + q % 2 * 64, 0, Level);
}

// Decodes a whole such tile. Fetches nothing if `near` is 0.
template <int Level>
[[gnu::always_inline]] inline void decode_tile(__m512i upper, const std::byte* codes, uint16_t* out,
                                               const fetch_distance& ahead) {
#pragma GCC unroll 4
  for (int q = 0; q < tile_rows / 2; q += 2) {
    for (int i = q; ahead.near != 0 && i < q + 2; ++i) fetch_coded_rows<Level>(codes + ahead.near, i);
    if (ahead.far != 0 && q % 4 == 0) __builtin_prefetch(codes + q / 2 * coded_group_bytes + ahead.far, 0, 1);
    __m512i rows[4];
    decode_coded_rows(upper, codes, q, rows[0], rows[1]);
    decode_coded_rows(upper, codes, q + 1, rows[2], rows[3]);
    for (int i = 0; i < 4; ++i) _mm512_store_si512(out + q * 64 + i * 32, rows[i]);
  }
}

[[gnu::always_inline]] inline __m512i load_upper_bytes(const uint8_t* table) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
}

}  // namespace
}  // namespace troupe::kernels

#if !defined(__clang__)
#pragma GCC pop_options
#endif
