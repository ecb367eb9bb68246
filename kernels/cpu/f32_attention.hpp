// Absorbed MLA attention of one query row of profile f32 (MODEL.md 8).
//
// Each block of 32 positions gives a partial result of its own: its largest score, the sum of
// exponentials and the weighted latents. Partials merge in the order of position. A score is 16
// lanes of fused multiply-adds over (latent, key) and the fixed tree; a weighted latent is one chain
// over the block's positions. Heads never mix, so splitting them over threads changes nothing, and
// grouping them (so that they share each read of a latent) changes nothing either. `V` comes from
// an unnamed namespace (see cpu/exp.hpp).
#pragma once

#include "kernels/cpu/exp.hpp"
#include "kernels/cpu/lanes.hpp"

namespace troupe::kernels {

// A group of heads against one block. Rows beyond `heads` repeat the last head; their results are dropped.
template <class V>
struct head_group {
  static constexpr int size = V::attention_heads;
  const float* q[size];                  // padded query rows [width]
  float* sums[size];                     // padded accumulators [rk_padded]
  int heads;                             // 1 .. size
  float scores[size][block_positions];   // then the exponentials
  float keep_old[size], keep_new[size];  // factors of the merge
};

// scores[h][t] = scale * q[h] . row[t] for t < count; -infinity beyond.
template <class V>
void block_scores(head_group<V>& group, const float* rows, int width, int count, float scale) {
  constexpr int heads = V::attention_heads;
  static_assert(heads % 2 == 0);
  for (int t = 0; t < count; t += 2) {
    const float* row_0 = rows + ptrdiff_t{t} * width;
    const float* row_1 = t + 1 < count ? row_0 + width : row_0;  // never read past `count`
    typename V::reg dots[heads][2];
#pragma GCC unroll 16
    for (int h = 0; h < heads; ++h) dots[h][0] = dots[h][1] = V::zero();
    for (int i = 0; i < width; i += lane_count) {
      const auto a = V::load(row_0 + i);
      const auto b = V::load(row_1 + i);
#pragma GCC unroll 16
      for (int h = 0; h < heads; ++h) {
        const auto q = V::load(group.q[h] + i);
        dots[h][0] = V::fma(q, a, dots[h][0]);
        dots[h][1] = V::fma(q, b, dots[h][1]);
      }
    }
#pragma GCC unroll 16
    for (int h = 0; h < heads; h += 2)
      V::reduce_add_2x2(dots[h][0], dots[h][1], dots[h + 1][0], dots[h + 1][1], &group.scores[h][t],
                        &group.scores[h + 1][t]);
  }
  for (int h = 0; h < heads; ++h) {
    for (int t = 0; t < count; ++t) group.scores[h][t] *= scale;
    for (int t = count; t < block_positions; ++t) group.scores[h][t] = -__builtin_inff();
  }
}

// Turns scores into exponentials relative to the block's maximum, updates the running maximum and sum
// of each head, and leaves the factors with which old and new weighted latents merge.
template <class V>
void block_softmax(head_group<V>& group, float* running_max, float* running_sum) {
  for (int h = 0; h < group.heads; ++h) {
    float* s = group.scores[h];
    const auto low = V::load(s), high = V::load(s + lane_count);
    const float block_max = V::reduce_max(V::max(low, high));
    const auto shift = V::broadcast(block_max);
    const auto p_low = exp_lanes<V>(V::sub(low, shift)), p_high = exp_lanes<V>(V::sub(high, shift));
    V::store(s, p_low);
    V::store(s + lane_count, p_high);
    const float block_sum = V::reduce_add(V::add(p_low, p_high));
    const float merged_max = running_max[h] > block_max ? running_max[h] : block_max;
    float factors[lane_count] = {running_max[h] - merged_max, block_max - merged_max};
    V::store(factors, exp_lanes<V>(V::load(factors)));
    group.keep_old[h] = factors[0];
    group.keep_new[h] = factors[1];
    running_sum[h] = __builtin_fmaf(running_sum[h], factors[0], block_sum * factors[1]);
    running_max[h] = merged_max;
  }
  // The repeated rows of a short group must hold numbers too.
  for (int h = group.heads; h < head_group<V>::size; ++h)
    for (int t = 0; t < block_positions; ++t) group.scores[h][t] = 0;
}

// sums[h] = sums[h] * keep_old + (sum over t of p[h][t] * latent[t]) * keep_new, for `Wide` x 16 columns from `column`.
template <class V, int Wide>
void block_values(const head_group<V>& group, const float* rows, int width, int count, int column) {
  constexpr int heads = V::attention_heads;
  typename V::reg partial[heads][Wide];
#pragma GCC unroll 16
  for (int h = 0; h < heads; ++h)
#pragma GCC unroll 16
    for (int w = 0; w < Wide; ++w) partial[h][w] = V::zero();
  for (int t = 0; t < count; ++t) {
    typename V::reg c[Wide];
#pragma GCC unroll 16
    for (int w = 0; w < Wide; ++w) c[w] = V::load(rows + ptrdiff_t{t} * width + column + w * lane_count);
#pragma GCC unroll 16
    for (int h = 0; h < heads; ++h) {
      const auto p = V::broadcast(group.scores[h][t]);
#pragma GCC unroll 16
      for (int w = 0; w < Wide; ++w) partial[h][w] = V::fma(p, c[w], partial[h][w]);
    }
  }
#pragma GCC unroll 16
  for (int h = 0; h < heads; ++h) {
    if (h >= group.heads) break;
    const auto keep_old = V::broadcast(group.keep_old[h]), keep_new = V::broadcast(group.keep_new[h]);
#pragma GCC unroll 16
    for (int w = 0; w < Wide; ++w) {
      float* at = group.sums[h] + column + w * lane_count;
      V::store(at, V::fma(V::load(at), keep_old, V::mul(partial[h][w], keep_new)));
    }
  }
}

// Copies `count` values and fills up to `padded` with zeros.
template <class V>
void copy_padded(const float* from, float* to, int count, int padded) {
  for (int i = 0; i < padded; i += lane_count) {
    const int lanes = count - i < lane_count ? count - i : lane_count;
    V::store(to + i, V::load_part(from + i, lanes));
  }
}

template <class V>
void mla_core(const mla_call& call) {
  constexpr int size = head_group<V>::size;
  const int heads = call.head_end - call.head_begin;
  const int rk_padded = padded_to_lanes(call.rk), dr_padded = padded_to_lanes(call.dr);
  const int width = rk_padded + dr_padded;
  float* q = call.scratch;                                   // [heads, width]
  float* sums = q + ptrdiff_t{heads} * width;                // [heads, rk_padded]
  float* running_max = sums + ptrdiff_t{heads} * rk_padded;  // [heads]
  float* running_sum = running_max + heads;                  // [heads]
  for (int h = 0; h < heads; ++h) {
    const float* from = call.q + ptrdiff_t{call.head_begin + h} * (call.rk + call.dr);
    copy_padded<V>(from, q + ptrdiff_t{h} * width, call.rk, rk_padded);
    copy_padded<V>(from + call.rk, q + ptrdiff_t{h} * width + rk_padded, call.dr, dr_padded);
    for (int i = 0; i < rk_padded; i += lane_count) V::store(sums + ptrdiff_t{h} * rk_padded + i, V::zero());
    running_max[h] = -__builtin_inff();
    running_sum[h] = 0;
  }
  for (int first = 0; first < call.length; first += block_positions) {
    const int count = call.length - first < block_positions ? call.length - first : block_positions;
    const auto* rows = reinterpret_cast<const float*>(call.blocks[first / block_positions]);
    for (int h = 0; h < heads; h += size) {
      head_group<V> group;
      group.heads = heads - h < size ? heads - h : size;
      for (int i = 0; i < size; ++i) {
        const ptrdiff_t head = h + (i < group.heads ? i : group.heads - 1);
        group.q[i] = q + head * width;
        group.sums[i] = sums + head * rk_padded;
      }
      block_scores<V>(group, rows, width, count, call.scale);
      block_softmax<V>(group, running_max + h, running_sum + h);
      int column = 0;
      for (; column + 2 * lane_count <= rk_padded; column += 2 * lane_count)
        block_values<V, 2>(group, rows, width, count, column);
      if (column < rk_padded) block_values<V, 1>(group, rows, width, count, column);
    }
  }
  for (int h = 0; h < heads; ++h) {
    const auto inverse = V::broadcast(1.0F / running_sum[h]);
    float* to = call.out + ptrdiff_t{call.head_begin + h} * call.rk;
    for (int i = 0; i < call.rk; i += lane_count) {
      const int lanes = call.rk - i < lane_count ? call.rk - i : lane_count;
      V::store_part(to + i, V::mul(V::load(sums + ptrdiff_t{h} * rk_padded + i), inverse), lanes);
    }
  }
}

}  // namespace troupe::kernels
