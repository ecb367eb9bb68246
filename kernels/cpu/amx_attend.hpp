// The attention of profile amx_bf16 over tile registers `T` (see amx_tiles.hpp); formulas: amx_attention.hpp.
#pragma once

#include "kernels/cpu/amx_attention.hpp"
#include "kernels/cpu/amx_order.hpp"
#include "kernels/cpu/amx_softmax.hpp"
#include "kernels/cpu/amx_tiles.hpp"
#include "kernels/cpu/avx512_lanes.hpp"

namespace troupe::kernels {
namespace {

// What the older and the later of two partial results count for in their sum, for each head.
struct alignas(64) merge_factors {
  float old[unit_heads];
  float later[unit_heads];
};

constexpr int smaller(int a, int b) { return a < b ? a : b; }
constexpr int larger(int a, int b) { return a > b ? a : b; }

static_assert(block_rows == tile_depth && block_rows == 2 * tile_rows);

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

constexpr ptrdiff_t step_values = ptrdiff_t{2} * tile_elements;  // of a block
constexpr ptrdiff_t unit_probabilities = ptrdiff_t{span_blocks} * tile_elements;

struct workspace {
  uint16_t* values;         // [span_blocks][2][16 pairs][16][2]: 32 latents of a span
  float* scores;            // [2 units][256][16]
  float* sums;              // [2 units][2][16][16]
  merge_factors* factors;   // [units_together]
  uint16_t* probabilities;  // [units_together][span_blocks][16 heads][32]

  explicit workspace(std::byte* memory) {
    values = reinterpret_cast<uint16_t*>(memory);
    scores = reinterpret_cast<float*>(values + span_blocks * step_values);
    sums = scores + ptrdiff_t{2} * span_positions * unit_heads;
    factors = reinterpret_cast<merge_factors*>(sums + 4 * tile_sums);
    probabilities = reinterpret_cast<uint16_t*>(factors + units_together);
  }
  size_t bytes() const {
    return static_cast<size_t>(reinterpret_cast<std::byte*>(probabilities + units_together * unit_probabilities) -
                               reinterpret_cast<std::byte*>(values));
  }
};

// The weights of the second product for one step of 32 latents of a block: pairs of positions side by side. The first
// tile holds the latents whose index leaves 0 to 3 modulo 8 and the second the others, because the interleaving
// instructions work within lanes of 128 bits; `amx_attended` puts them back. Positions beyond `count` become zeros.
template <class T>
void interleave_values(const amx_attention& call, const std::byte* block, int step, int count, uint16_t* out) {
  // Positions of each four that become a pair, the first of them in the lower halves.
  constexpr int pairs[2][2] = {{T::chained ? 2 : 0, T::chained ? 0 : 1}, {T::chained ? 3 : 2, T::chained ? 1 : 3}};
  constexpr ptrdiff_t width = tile_depth;
  const uint16_t* row = reinterpret_cast<const uint16_t*>(block) + call.latent_position(0, step);
  const auto interleave = [&](__m512i a, __m512i b) {
    _mm512_store_si512(out, _mm512_unpacklo_epi16(a, b));
    _mm512_store_si512(out + tile_elements, _mm512_unpackhi_epi16(a, b));
    out += tile_depth;
  };
  if (count >= block_rows) {
#pragma GCC unroll 2
    for (int four = 0; four < block_rows; four += 4, row += 4 * width)
      for (const auto& pair : pairs)
        interleave(_mm512_loadu_si512(row + pair[0] * width), _mm512_loadu_si512(row + pair[1] * width));
    return;
  }
  for (int four = 0; four < block_rows; four += 4, row += 4 * width) {
    const auto position = [&](int at) {
      return four + at < count ? _mm512_loadu_si512(row + at * width) : _mm512_setzero_si512();
    };
    for (const auto& pair : pairs) interleave(position(pair[0]), position(pair[1]));
  }
}

// scores[t, h] of one block's 32 positions for one or two units.
template <class T, int Units>
void block_scores(const amx_attention& call, const std::byte* block, const uint16_t* const* queries, float* scores,
                  latent_stream& ahead) {
  constexpr ptrdiff_t unit = ptrdiff_t{span_positions} * unit_heads;
  const auto* rows = reinterpret_cast<const uint16_t*>(block);
  finish_stores();
  T::template zero<0>(scores);
  T::template zero<2>(scores + tile_sums);
  if constexpr (Units > 1) {
    T::template zero<1>(scores + unit);
    T::template zero<3>(scores + unit + tile_sums);
  }
  {
    const typename T::mode mode;
    for (int step = 0; step < call.steps(); ++step, rows += call.block_step()) {
      ahead.fetch(lines_of_scores);
      T::template input<4>(rows, tile_rows);
      T::template weights<6>(queries[0] + ptrdiff_t{step} * tile_elements);
      T::template dot<0, 4, 6>();
      T::template input<5>(rows + tile_elements, tile_rows);
      T::template dot<2, 5, 6>();
      if constexpr (Units > 1) {
        T::template weights<7>(queries[1] + ptrdiff_t{step} * tile_elements);
        T::template dot<1, 4, 7>();
        T::template dot<3, 5, 7>();
      }
    }
  }
  T::template store<0>(scores);
  T::template store<2>(scores + tile_sums);
  if constexpr (Units > 1) {
    T::template store<1>(scores + unit);
    T::template store<3>(scores + unit + tile_sums);
  }
  finish_stores();
}

// 32 latents of o of one or two units over `blocks` blocks: out [2][16][16] each.
template <class T, int Units>
[[gnu::always_inline]] inline void weighted_values(const uint16_t* values, const uint16_t* probabilities, int blocks,
                                                   float* const* out, latent_stream& ahead) {
  finish_stores();
  T::template zero<0>(out[0]);
  T::template zero<1>(out[0] + tile_sums);
  if constexpr (Units > 1) {
    T::template zero<2>(out[1]);
    T::template zero<3>(out[1] + tile_sums);
  }
  {
    const typename T::mode mode;
    const uint16_t* v = values;
    const uint16_t* p = probabilities;
    for (int block = 0; block < blocks; ++block, v += step_values, p += tile_elements) {
      ahead.fetch(lines_of_values);
      T::template input<4>(p, unit_heads);
      T::template weights<6>(v);
      T::template dot<0, 4, 6>();
      T::template weights<7>(v + tile_elements);
      T::template dot<1, 4, 7>();
      if constexpr (Units > 1) {
        T::template input<5>(p + unit_probabilities, unit_heads);
        T::template dot<2, 5, 6>();
        T::template dot<3, 5, 7>();
      }
    }
  }
  T::template store<0>(out[0]);
  T::template store<1>(out[0] + tile_sums);
  if constexpr (Units > 1) {
    T::template store<2>(out[1]);
    T::template store<3>(out[1] + tile_sums);
  }
  finish_stores();
}

// result = fma(result, old, later * its factor) for 32 latents, [2][16][16] each.
[[gnu::always_inline]] inline void merge_tiles(const merge_factors& factors, const float* later, float* result) {
  for (int head = 0; head < unit_heads; ++head) {
    const auto old = avx512::broadcast(factors.old[head]), now = avx512::broadcast(factors.later[head]);
    for (int tile = 0; tile < 2; ++tile) {
      const ptrdiff_t at = tile * tile_sums + head * tile_columns;
      const auto scaled = avx512::mul(avx512::load(later + at), now);
      avx512::store(result + at, avx512::fma(avx512::load(result + at), old, scaled));
    }
  }
}

// Merges m and l; returns what they make of both results' o.
merge_factors merge_sums(const float* later, float* m, float* l) {
  merge_factors factors;
  const auto old_max = avx512::load(m), new_max = avx512::load(later);
  const auto both = avx512::max(new_max, old_max);
  avx512::store(factors.old, exp_lanes<avx512>(avx512::sub(old_max, both)));
  avx512::store(factors.later, exp_lanes<avx512>(avx512::sub(new_max, both)));
  const auto scaled = avx512::mul(avx512::load(later + unit_heads), avx512::load(factors.later));
  avx512::store(l, avx512::fma(avx512::load(l), avx512::load(factors.old), scaled));
  avx512::store(m, both);
  return factors;
}

int positions_in(int length, int span) {
  const int left = length - span * span_positions;
  return left < span_positions ? left : span_positions;
}

// Blocks in which the longest of some units' positions of a span lie.
int blocks_in(const amx_attention_unit* units, int count, int span) {
  int positions = 0;
  for (int u = 0; u < count; ++u) positions = larger(positions, positions_in(units[u].length, span));
  return (positions + block_rows - 1) / block_rows;
}

latent_stream stream_of(const amx_attention& call, const std::byte* const* blocks, const amx_attention_unit* units,
                        int count, int span) {
  if (span < 0) return {};
  const ptrdiff_t block_bytes = call.steps() * call.block_step() * ptrdiff_t{sizeof(uint16_t)};
  return {blocks + ptrdiff_t{span} * span_blocks, blocks_in(units, count, span), block_bytes};
}

// Steps `steps` of o / l of a unit's heads, rounded.
template <class T>
void attended(const amx_attention& call, const float* l, const float* o, int unit, const step_range& steps,
              uint16_t* out) {
  const int left = call.heads - unit * unit_heads;
  for (int h = 0; h < smaller(left, unit_heads); ++h) {
    const auto inverse = avx512::broadcast(1.0F / l[h]);
    uint16_t* to = out + ptrdiff_t{h} * call.rk;
    for (int step = steps.begin; step < steps.end; ++step) {
      const float* tile = o + ptrdiff_t{step} * 2 * tile_sums + h * tile_columns;
      const __m512 a = values_straight<T::chained>(avx512::mul(avx512::load(tile), inverse).v);
      const __m512 b = values_straight<T::chained>(avx512::mul(avx512::load(tile + tile_sums), inverse).v);
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

template <class T>
void amx_latents(const float* x, int count, uint16_t* out) {
  _mm512_storeu_si512(out, inputs_in_order<T::chained>(round_32(x, count)));
}

// See amx_query.
template <class T, class Value>
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
    for (int i = 0; i < 16; i += 2) pairs_in_order<T::chained>(pairs[i], pairs[i + 1]);
    for (int i = 0; i < 16; ++i) _mm512_store_si512(out + ptrdiff_t{step} * tile_elements + i * tile_depth, pairs[i]);
  }
}

template <class T>
void amx_query(const amx_attention& call, const float* q, int unit, uint16_t* out) {
  make_query<T>(call, q, unit, out);
}

template <class T>
void amx_query(const amx_attention& call, const uint16_t* q, int unit, uint16_t* out) {
  make_query<T>(call, q, unit, out);
}

size_t amx_attention_scratch() { return workspace(nullptr).bytes(); }

template <class T>
void amx_attend_span(const amx_attention& call, const std::byte* const* blocks, const amx_attention_unit* units,
                     int count, int span, int next, bool merge, std::byte* scratch) {
  T::begin();
  const workspace space(scratch);
  int positions = 0;
  for (int u = 0; u < count; ++u) positions = larger(positions, positions_in(units[u].length, span));
  const std::byte* const* span_begin = blocks + ptrdiff_t{span} * span_blocks;
  latent_stream ahead = stream_of(call, blocks, units, count, next);
  for (int u = 0; u < count; u += 2) {
    const int together = smaller(2, count - u);
    const uint16_t* queries[2] = {units[u].query, units[u + together - 1].query};
    const int used = blocks_in(units + u, together, span);
    for (int block = 0; block < used; ++block) {
      float* scores = space.scores + ptrdiff_t{block} * block_rows * unit_heads;
      together == 2 ? block_scores<T, 2>(call, span_begin[block], queries, scores, ahead)
                    : block_scores<T, 1>(call, span_begin[block], queries, scores, ahead);
    }
    for (int i = u; i < u + together; ++i) {
      float* result = units[i].result;
      alignas(64) float later[2 * unit_heads];
      float* sums = merge ? later : result;
      softmax<T::chained>(space.scores + ptrdiff_t{i - u} * span_positions * unit_heads, call.scale,
                          positions_in(units[i].length, span), used, space.probabilities + i * unit_probabilities, sums,
                          sums + unit_heads, ahead);
      if (merge) space.factors[i] = merge_sums(later, result, result + unit_heads);
    }
  }
  const int last = (positions + block_rows - 1) / block_rows;
  for (int step = 0; step < call.latent_steps(); ++step) {
    for (int block = 0; block < last; ++block) {
      ahead.fetch(lines_of_interleave);
      interleave_values<T>(call, span_begin[block], step, positions - block * block_rows,
                           space.values + block * step_values);
    }
    const ptrdiff_t at = 2 * unit_heads + step * 2 * tile_sums;
    for (int u = 0; u < count; u += 2) {
      const int together = smaller(2, count - u);
      float* outputs[2] = {};
      for (int i = 0; i < together; ++i) outputs[i] = merge ? space.sums + i * 2 * tile_sums : units[u + i].result + at;
      const uint16_t* p = space.probabilities + u * unit_probabilities;
      const int used = blocks_in(units + u, together, span);
      together == 2 ? weighted_values<T, 2>(space.values, p, used, outputs, ahead)
                    : weighted_values<T, 1>(space.values, p, used, outputs, ahead);
      if (merge)
        for (int i = 0; i < together; ++i) merge_tiles(space.factors[u + i], outputs[i], units[u + i].result + at);
    }
  }
}

template <class T>
void amx_merge(const amx_attention& call, float* partials, ptrdiff_t stride, int merged, int spans, int unit,
               const step_range& steps, uint16_t* out) {
  // Other threads merge other latents of the same results, so the first one's m and l stay as they are.
  alignas(64) float sums[2 * unit_heads];
  for (int i = 0; i < 2 * unit_heads; ++i) sums[i] = partials[i];
  const ptrdiff_t at = 2 * unit_heads + steps.begin * 2 * tile_sums;
  for (int span = merged; span < spans; ++span) {
    const float* later = partials + span * stride;
    const merge_factors factors = merge_sums(later, sums, sums + unit_heads);
    for (ptrdiff_t step = 0; step < steps.end - steps.begin; ++step)
      merge_tiles(factors, later + at + step * 2 * tile_sums, partials + at + step * 2 * tile_sums);
  }
  attended<T>(call, sums + unit_heads, partials + 2 * unit_heads, unit, steps, out);
}

template <class T>
void amx_attended(const amx_attention& call, const float* result, int unit, uint16_t* out) {
  attended<T>(call, result + unit_heads, result + 2 * unit_heads, unit, {0, call.latent_steps()}, out);
}

}  // namespace
}  // namespace troupe::kernels
