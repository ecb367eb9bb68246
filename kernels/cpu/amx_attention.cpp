#include "kernels/cpu/amx_attention.hpp"

#include "kernels/cpu/amx_matmul.hpp"
#include "kernels/cpu/amx_tiles.hpp"
#include "kernels/cpu/avx512_lanes.hpp"
#include "kernels/cpu/exp.hpp"

namespace troupe::kernels {
namespace {

constexpr int block_rows = block_positions;
constexpr int span_blocks = span_positions / block_rows;
constexpr ptrdiff_t tile_sums = tile_rows * tile_columns;
static_assert(block_rows == tile_depth && block_rows == 2 * tile_rows);

// out[j] = the j-th 32-bit elements of in[0 .. 15].
[[gnu::always_inline]] inline void transpose(const __m512i* in, __m512i* out) {
  __m512i a[16], b[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    a[2 * i] = _mm512_unpacklo_epi32(in[2 * i], in[2 * i + 1]);
    a[2 * i + 1] = _mm512_unpackhi_epi32(in[2 * i], in[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    b[4 * i] = _mm512_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 1] = _mm512_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 2] = _mm512_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
    b[4 * i + 3] = _mm512_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
  }
  // b[4 i + c]: in lane L, elements 4 L + c of rows 4 i .. 4 i + 3.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i low_0 = _mm512_shuffle_i32x4(b[c], b[4 + c], 0x88),
                  high_0 = _mm512_shuffle_i32x4(b[c], b[4 + c], 0xdd);
    const __m512i low_1 = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0x88),
                  high_1 = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0xdd);
    out[c] = _mm512_shuffle_i32x4(low_0, low_1, 0x88);
    out[8 + c] = _mm512_shuffle_i32x4(low_0, low_1, 0xdd);
    out[4 + c] = _mm512_shuffle_i32x4(high_0, high_1, 0x88);
    out[12 + c] = _mm512_shuffle_i32x4(high_0, high_1, 0xdd);
  }
}

// 32 values as BF16; values beyond `count` are zero.
[[gnu::always_inline]] inline __m512i round_32(const uint16_t* x, int count) {
  const __mmask32 mask = count >= tile_depth ? ~__mmask32{0} : (__mmask32{1} << (count > 0 ? count : 0)) - 1;
  return _mm512_maskz_loadu_epi16(mask, x);
}
[[gnu::always_inline]] inline __m512i round_32(const float* x, int count) {
  const auto low = count > 0 ? avx512::load_part(x, count) : avx512::zero();
  const auto high = count > lane_count ? avx512::load_part(x + lane_count, count - lane_count) : avx512::zero();
  return _mm512_inserti64x4(_mm512_castsi256_si512(avx512::rounded(low)), avx512::rounded(high), 1);
}

struct workspace {
  uint16_t* values;         // [span_blocks][2 latent_steps][16 pairs][16][2]
  float* scores;            // [2 units][256][16]
  uint16_t* probabilities;  // [2 units][span_blocks][16 heads][32]
  float* partial;           // [2 units][unit_partial]

  workspace(const amx_attention& call, std::byte* memory) {
    values = reinterpret_cast<uint16_t*>(memory);
    scores = reinterpret_cast<float*>(values + ptrdiff_t{span_blocks} * call.latent_steps() * 2 * tile_elements);
    probabilities = reinterpret_cast<uint16_t*>(scores + ptrdiff_t{2} * span_positions * unit_heads);
    partial = reinterpret_cast<float*>(probabilities + ptrdiff_t{2} * span_blocks * tile_elements);
  }
};

// The weights of the second product: pairs of positions side by side. Within 32 latents, the first tile holds those
// whose index leaves 0 to 3 modulo 8 and the second the others, because the interleaving instructions work within
// lanes of 128 bits; `amx_attended` puts them back. Rows beyond `count` become zeros. Reads the next block early.
void interleave_values(const amx_attention& call, const std::byte* block, const std::byte* next, int count,
                       uint16_t* out) {
  const ptrdiff_t width = call.width();
  const int steps = call.latent_steps();
  const auto* rows = reinterpret_cast<const uint16_t*>(block);
  const ptrdiff_t ahead = ptrdiff_t{2} * width * static_cast<ptrdiff_t>(sizeof(uint16_t));
  for (int pair = 0; pair < block_rows / 2; ++pair) {
    const uint16_t* first = rows + 2 * pair * width;
    if (next != nullptr)
      for (ptrdiff_t line = 0; line < ahead; line += 64) __builtin_prefetch(next + pair * ahead + line, 0, 2);
    for (int step = 0; step < steps; ++step) {
      const __m512i a = 2 * pair < count ? _mm512_loadu_si512(first + step * tile_depth) : _mm512_setzero_si512();
      const __m512i b =
          2 * pair + 1 < count ? _mm512_loadu_si512(first + width + step * tile_depth) : _mm512_setzero_si512();
      uint16_t* to = out + ptrdiff_t{step} * 2 * tile_elements + pair * tile_depth;
      _mm512_store_si512(to, _mm512_unpacklo_epi16(a, b));
      _mm512_store_si512(to + tile_elements, _mm512_unpackhi_epi16(a, b));
    }
  }
}

// scores[t, h] of one block's 32 positions for one or two units.
template <int Units>
void block_scores(const amx_attention& call, const std::byte* block, const uint16_t* const* queries, float* scores) {
  const ptrdiff_t row_bytes = ptrdiff_t{call.width()} * static_cast<ptrdiff_t>(sizeof(uint16_t));
  const std::byte* rows = block;
  finish_stores();
  zero_tiles<2, 2>();
  for (int step = 0; step < call.steps(); ++step, rows += 64) {
    _tile_loadd(4, rows, row_bytes);
    _tile_loadd(6, queries[0] + ptrdiff_t{step} * tile_elements, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, rows + tile_rows * row_bytes, row_bytes);
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (Units > 1) {
      _tile_loadd(7, queries[1] + ptrdiff_t{step} * tile_elements, 64);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  constexpr ptrdiff_t unit = ptrdiff_t{span_positions} * unit_heads;
  _tile_stored(0, scores, 64);
  _tile_stored(2, scores + tile_sums, 64);
  if constexpr (Units > 1) {
    _tile_stored(1, scores + unit, 64);
    _tile_stored(3, scores + unit + tile_sums, 64);
  }
  finish_stores();
}

// Turns the scores [count, 16] of a unit into probabilities [blocks][16 heads][32 positions], zero beyond `count`, and
// leaves m and l.
void softmax(float* scores, float scale, int count, int blocks, uint16_t* probabilities, float* largest, float* sum) {
  const auto factor = avx512::broadcast(scale);
  auto m = avx512::broadcast(-__builtin_inff());
  for (int t = 0; t < count; ++t) {
    const auto s = avx512::mul(avx512::load(scores + t * unit_heads), factor);
    avx512::store(scores + t * unit_heads, s);
    m = avx512::max(s, m);
  }
  avx512::reg chains[4] = {avx512::zero(), avx512::zero(), avx512::zero(), avx512::zero()};
  for (int block = 0; block < blocks; ++block) {
    __m512i pairs[16], heads[16];
#pragma GCC unroll 2
    for (int pair = 0; pair < 16; ++pair) {
      __m512i both = _mm512_setzero_si512();
      const int t = block * block_rows + 2 * pair;
      if (t < count) {
        const auto p = exp_lanes<avx512>(avx512::sub(avx512::load(scores + t * unit_heads), m));
        chains[pair % 2 * 2] = avx512::add(chains[pair % 2 * 2], p);
        both = _mm512_cvtepu16_epi32(avx512::rounded(p));
      }
      if (t + 1 < count) {
        const auto p = exp_lanes<avx512>(avx512::sub(avx512::load(scores + (t + 1) * unit_heads), m));
        chains[pair % 2 * 2 + 1] = avx512::add(chains[pair % 2 * 2 + 1], p);
        both = _mm512_or_si512(both, _mm512_slli_epi32(_mm512_cvtepu16_epi32(avx512::rounded(p)), 16));
      }
      pairs[pair] = both;
    }
    transpose(pairs, heads);
    for (int h = 0; h < unit_heads; ++h)
      _mm512_store_si512(probabilities + ptrdiff_t{block} * tile_elements + h * tile_depth, heads[h]);
  }
  avx512::store(largest, m);
  avx512::store(sum, avx512::add(avx512::add(chains[0], chains[1]), avx512::add(chains[2], chains[3])));
}

// o of one or two units: tiles [2 latent_steps][16][16] each.
template <int Units>
void weighted_values(const amx_attention& call, const workspace& space, int blocks, float* const* out) {
  const int tiles = 2 * call.latent_steps();
  const ptrdiff_t block_values = ptrdiff_t{tiles} * tile_elements;
  constexpr ptrdiff_t unit = ptrdiff_t{span_blocks} * tile_elements;
  finish_stores();
  for (int tile = 0; tile < tiles; tile += 2) {
    zero_tiles<2, 2>();
    const uint16_t* v = space.values + ptrdiff_t{tile} * tile_elements;
    const uint16_t* p = space.probabilities;
    for (int block = 0; block < blocks; ++block, v += block_values, p += tile_elements) {
      _tile_loadd(4, p, 64);
      _tile_loadd(6, v, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, v + tile_elements, 64);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (Units > 1) {
        _tile_loadd(5, p + unit, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, out[0] + ptrdiff_t{tile} * tile_sums, 64);
    _tile_stored(1, out[0] + ptrdiff_t{tile + 1} * tile_sums, 64);
    if constexpr (Units > 1) {
      _tile_stored(2, out[1] + ptrdiff_t{tile} * tile_sums, 64);
      _tile_stored(3, out[1] + ptrdiff_t{tile + 1} * tile_sums, 64);
    }
  }
  finish_stores();
}

int positions_in(int length, int span) {
  const int left = length - span * span_positions;
  return left < span_positions ? left : span_positions;
}

// See amx_query.
template <class Value>
void make_query(const amx_attention& call, const Value* q, int unit, uint16_t* out) {
  const ptrdiff_t q_width = call.rk + call.dr;
  const int first = unit * unit_heads;
  for (int step = 0; step < call.steps(); ++step) {
    const bool latent = step < call.latent_steps();
    const int at = latent ? step * tile_depth : call.rk + (step - call.latent_steps()) * tile_depth;
    const int count = (latent ? call.rk : call.rk + call.dr) - at;
    __m512i heads[16], pairs[16];
    for (int h = 0; h < unit_heads; ++h)
      heads[h] = first + h < call.heads ? round_32(q + (first + h) * q_width + at, count) : _mm512_setzero_si512();
    transpose(heads, pairs);
    for (int i = 0; i < 16; ++i) _mm512_store_si512(out + ptrdiff_t{step} * tile_elements + i * tile_depth, pairs[i]);
  }
}

}  // namespace

void amx_query(const amx_attention& call, const float* q, int unit, uint16_t* out) { make_query(call, q, unit, out); }

void amx_query(const amx_attention& call, const uint16_t* q, int unit, uint16_t* out) {
  make_query(call, q, unit, out);
}

size_t amx_attention_scratch(const amx_attention& call) {
  return static_cast<size_t>(span_blocks) * static_cast<size_t>(call.latent_steps()) * 2 * tile_elements * 2 +
         2 * size_t{span_positions} * unit_heads * sizeof(float) + 2 * size_t{span_blocks} * tile_elements * 2 +
         2 * static_cast<size_t>(call.unit_partial()) * sizeof(float);
}

void amx_attend_span(const amx_attention& call, const std::byte* const* blocks, const amx_attention_unit* units,
                     int count, int span, bool merge, std::byte* scratch) {
  amx_prepare_thread();
  const workspace space(call, scratch);
  int positions = 0;
  for (int u = 0; u < count; ++u) {
    const int here = positions_in(units[u].length, span);
    positions = here > positions ? here : positions;
  }
  const std::byte* const* span_begin = blocks + ptrdiff_t{span} * span_blocks;
  const int last = (positions + block_rows - 1) / block_rows;
  for (int block = 0; block < last; ++block)
    interleave_values(call, span_begin[block], block + 1 < last ? span_begin[block + 1] : nullptr,
                      positions - block * block_rows,
                      space.values + ptrdiff_t{block} * call.latent_steps() * 2 * tile_elements);
  for (int u = 0; u < count; u += 2) {
    const int together = u + 1 < count ? 2 : 1;
    const uint16_t* queries[2] = {units[u].query, units[u + together - 1].query};
    int here[2], longest = 0;
    for (int i = 0; i < together; ++i) {
      here[i] = positions_in(units[u + i].length, span);
      longest = here[i] > longest ? here[i] : longest;
    }
    const int used = (longest + block_rows - 1) / block_rows;
    for (int block = 0; block < used; ++block) {
      float* scores = space.scores + ptrdiff_t{block} * block_rows * unit_heads;
      together == 2 ? block_scores<2>(call, span_begin[block], queries, scores)
                    : block_scores<1>(call, span_begin[block], queries, scores);
    }
    float* results[2];
    float* outputs[2] = {};
    for (int i = 0; i < together; ++i) {
      results[i] = merge ? space.partial + i * call.unit_partial() : units[u + i].result;
      outputs[i] = results[i] + 2 * unit_heads;
      softmax(space.scores + ptrdiff_t{i} * span_positions * unit_heads, call.scale, here[i], used,
              space.probabilities + ptrdiff_t{i} * span_blocks * tile_elements, results[i], results[i] + unit_heads);
    }
    together == 2 ? weighted_values<2>(call, space, used, outputs) : weighted_values<1>(call, space, used, outputs);
    if (merge)
      for (int i = 0; i < together; ++i) amx_merge(call, results[i], units[u + i].result);
  }
}

void amx_merge(const amx_attention& call, const float* later, float* result) {
  const auto old_max = avx512::load(result), new_max = avx512::load(later);
  const auto both = avx512::max(new_max, old_max);
  alignas(64) float keep_old[unit_heads], keep_new[unit_heads];
  avx512::store(keep_old, exp_lanes<avx512>(avx512::sub(old_max, both)));
  avx512::store(keep_new, exp_lanes<avx512>(avx512::sub(new_max, both)));
  const auto l = avx512::mul(avx512::load(later + unit_heads), avx512::load(keep_new));
  avx512::store(result + unit_heads, avx512::fma(avx512::load(result + unit_heads), avx512::load(keep_old), l));
  avx512::store(result, both);
  const float* from = later + 2 * unit_heads;
  float* to = result + 2 * unit_heads;
  const ptrdiff_t count = ptrdiff_t{call.latent_steps()} * 2 * tile_sums;
  for (ptrdiff_t i = 0; i < count; i += lane_count) {
    const ptrdiff_t head = i / lane_count % unit_heads;
    const auto scaled = avx512::mul(avx512::load(from + i), avx512::broadcast(keep_new[head]));
    avx512::store(to + i, avx512::fma(avx512::load(to + i), avx512::broadcast(keep_old[head]), scaled));
  }
}

void amx_attended(const amx_attention& call, const float* result, int unit, uint16_t* out) {
  const float* o = result + 2 * unit_heads;
  const int left = call.heads - unit * unit_heads;
  for (int h = 0; h < (left < unit_heads ? left : unit_heads); ++h) {
    const auto inverse = avx512::broadcast(1.0F / result[unit_heads + h]);
    uint16_t* to = out + ptrdiff_t{h} * call.rk;
    for (int step = 0; step < call.latent_steps(); ++step) {
      const float* tile = o + ptrdiff_t{step} * 2 * tile_sums + h * tile_columns;
      const __m512 a = avx512::mul(avx512::load(tile), inverse).v;
      const __m512 b = avx512::mul(avx512::load(tile + tile_sums), inverse).v;
      // Lanes of 128 bits of a and b take turns.
      const __m512i low_lanes = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
      const __m512i high_lanes = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
      const __m512 low = _mm512_castpd_ps(_mm512_permutex2var_pd(_mm512_castps_pd(a), low_lanes, _mm512_castps_pd(b)));
      const __m512 high =
          _mm512_castpd_ps(_mm512_permutex2var_pd(_mm512_castps_pd(a), high_lanes, _mm512_castps_pd(b)));
      const __m512i both =
          _mm512_inserti64x4(_mm512_castsi256_si512(avx512::rounded({low})), avx512::rounded({high}), 1);
      const int width = call.rk - step * tile_depth;
      const __mmask32 mask = width >= tile_depth ? ~__mmask32{0} : (__mmask32{1} << width) - 1;
      _mm512_mask_storeu_epi16(to + step * tile_depth, mask, both);
    }
  }
}

}  // namespace troupe::kernels
