#include <immintrin.h>

#include "kernels/cpu/amx_coding.hpp"

namespace troupe::kernels {

void code_tile_avx512(const upper_byte_table& table, const uint16_t* tile, std::byte* out, tile_misses& misses) {
  const uint8_t* code_of = table.code_of.data();
  const __m512i positive[2] = {_mm512_loadu_si512(code_of), _mm512_loadu_si512(code_of + 64)};
  const __m512i negative[2] = {_mm512_loadu_si512(code_of + 128), _mm512_loadu_si512(code_of + 192)};
  const __m512i lower_byte = _mm512_set1_epi16(0xff), nibble = _mm512_set1_epi8(15);
  uint64_t* missed = misses.data();
  for (int group = 0; group < tile_rows / coded_group_rows; ++group, out += coded_group_bytes, missed += 2) {
    __m512i codes[2];
    for (int half = 0; half < 2; ++half, tile += 2 * tile_depth) {
      const __m512i first = _mm512_load_si512(tile), second = _mm512_load_si512(tile + tile_depth);
      const __m512i lower =
          _mm512_packus_epi16(_mm512_and_si512(first, lower_byte), _mm512_and_si512(second, lower_byte));
      const __m512i upper = _mm512_packus_epi16(_mm512_srli_epi16(first, 8), _mm512_srli_epi16(second, 8));
      _mm512_store_si512(out + 64 + half * 64, lower);
      const __m512i code =
          _mm512_mask_blend_epi8(_mm512_movepi8_mask(upper), _mm512_permutex2var_epi8(positive[0], upper, positive[1]),
                                 _mm512_permutex2var_epi8(negative[0], upper, negative[1]));
      missed[half] = _mm512_movepi8_mask(code);
      codes[half] = _mm512_and_si512(code, nibble);
    }
    _mm512_store_si512(out, _mm512_or_si512(codes[0], _mm512_slli_epi16(codes[1], 4)));
  }
}

}  // namespace troupe::kernels
