// The softmax between the two products of attention in tiles, and what passes through memory meanwhile. For amx_bf16's
// object files alone (see amx_tiles.hpp).
#pragma once

#include "kernels/cpu/amx_attention.hpp"
#include "kernels/cpu/amx_order.hpp"
#include "kernels/cpu/amx_tiles.hpp"
#include "kernels/cpu/avx512_lanes.hpp"
#include "kernels/cpu/exp.hpp"

// So that the header also compiles where the command line does not enable these, as every header must.
#if !defined(__clang__)
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq")
#endif

namespace troupe::kernels {
namespace {

constexpr int block_rows = block_positions;
constexpr int span_blocks = span_positions / block_rows;

// Blocks of a span that are fetched while another is computed, a few lines at a time, because attention to few rows
// waits for memory. Every block is a stream of its own: the processor fetches several faster than one. The lines are
// spread evenly over the computation: it would wait for many at once, as they take the places in which what it reads
// itself arrives.
class latent_stream {
 public:
  // Nothing.
  latent_stream() = default;
  // Requires: 1 <= count <= span_blocks.
  latent_stream(const std::byte* const* blocks, int count, ptrdiff_t block_bytes) : end_(block_bytes) {
    for (int i = 0; i < span_blocks; ++i) blocks_[i] = blocks[i < count ? i : count - 1];
  }

  // Requires: `lines` is a multiple of four.
  [[gnu::always_inline]] inline void fetch(int lines) {
    for (; lines > 0 && at_ < end_; lines -= together) {
      for (int i = 0; i < together; ++i) __builtin_prefetch(blocks_[next_ + i] + at_, 0, 2);
      next_ = (next_ + together) % span_blocks;
      if (next_ == 0) at_ += line_bytes;
    }
  }

 private:
  static constexpr int together = 4;
  static_assert(span_blocks % together == 0);

  const std::byte* blocks_[span_blocks] = {};
  int next_ = 0;
  ptrdiff_t at_ = 0, end_ = 0;
};

// How many lines are fetched in a step of each part, about in proportion to the time that it takes; together a span's.
constexpr int lines_of_scores = 12;     // of 32 latents of a block
constexpr int lines_of_scaling = 4;     // of four positions
constexpr int lines_of_exp = 8;         // of two positions
constexpr int lines_of_interleave = 8;  // of 32 latents of a block
constexpr int lines_of_values = 4;      // of 32 latents of a block

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

// The bits of x with half a unit of BF16 added, so that the upper half is x rounded to nearest even.
[[gnu::always_inline]] inline __m512i biased(avx512::reg x) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
}

// BF16 of p (lower halves) and q, as avx512::rounded; NaNs must come from BF16 values or arithmetic.
[[gnu::always_inline]] inline __m512i rounded_pair(avx512::reg p, avx512::reg q) {
  return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(biased(p), 16), biased(q));
}

// Turns the scores [count, 16] of a unit into probabilities [blocks][16 heads][32 positions], zero beyond `count`, and
// leaves m and l.
template <bool Chained>
void softmax(float* scores, float scale, int count, int blocks, uint16_t* probabilities, float* largest, float* sum,
             latent_stream& ahead) {
  const auto factor = avx512::broadcast(scale);
  // Four chains: the largest is the same in any order, and one chain would wait for itself.
  avx512::reg most[4];
  for (auto& m : most) m = avx512::broadcast(-__builtin_inff());
  int t = 0;
  for (; t + 4 <= count; t += 4) {
    ahead.fetch(lines_of_scaling);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const auto s = avx512::mul(avx512::load(scores + (t + i) * unit_heads), factor);
      avx512::store(scores + (t + i) * unit_heads, s);
      most[i] = avx512::max(s, most[i]);
    }
  }
  for (; t < count; ++t) {
    const auto s = avx512::mul(avx512::load(scores + t * unit_heads), factor);
    avx512::store(scores + t * unit_heads, s);
    most[0] = avx512::max(s, most[0]);
  }
  const auto m = avx512::max(avx512::max(most[0], most[1]), avx512::max(most[2], most[3]));
  avx512::reg chains[4] = {avx512::zero(), avx512::zero(), avx512::zero(), avx512::zero()};
  for (int block = 0; block < blocks; ++block) {
    __m512i pairs[16], heads[16];
    const int first = block * block_rows;
    const float* s = scores + ptrdiff_t{first} * unit_heads;
    if (first + block_rows <= count) {
#pragma GCC unroll 2
      for (int pair = 0; pair < 16; ++pair, s += 2 * unit_heads) {
        ahead.fetch(lines_of_exp);
        const auto p = exp_lanes<avx512>(avx512::sub(avx512::load(s), m));
        const auto q = exp_lanes<avx512>(avx512::sub(avx512::load(s + unit_heads), m));
        chains[pair % 2 * 2] = avx512::add(chains[pair % 2 * 2], p);
        chains[pair % 2 * 2 + 1] = avx512::add(chains[pair % 2 * 2 + 1], q);
        pairs[pair] = rounded_pair(p, q);
      }
    } else {
#pragma GCC unroll 2
      for (int pair = 0; pair < 16; ++pair, s += 2 * unit_heads) {
        auto p = avx512::zero(), q = avx512::zero();
        if (first + 2 * pair < count) {
          p = exp_lanes<avx512>(avx512::sub(avx512::load(s), m));
          chains[pair % 2 * 2] = avx512::add(chains[pair % 2 * 2], p);
        }
        if (first + 2 * pair + 1 < count) {
          q = exp_lanes<avx512>(avx512::sub(avx512::load(s + unit_heads), m));
          chains[pair % 2 * 2 + 1] = avx512::add(chains[pair % 2 * 2 + 1], q);
        }
        pairs[pair] = rounded_pair(p, q);
      }
    }
    transpose(pairs, heads);
    for (int h = 0; h < unit_heads; ++h)
      _mm512_store_si512(probabilities + ptrdiff_t{block} * tile_elements + h * tile_depth,
                         inputs_in_order<Chained>(heads[h]));
  }
  avx512::store(largest, m);
  avx512::store(sum, avx512::add(avx512::add(chains[0], chains[1]), avx512::add(chains[2], chains[3])));
}

}  // namespace
}  // namespace troupe::kernels

#if !defined(__clang__)
#pragma GCC pop_options
#endif
