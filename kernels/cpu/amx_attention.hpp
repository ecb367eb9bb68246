// What absorbed MLA attention of profile amx_bf16 computes, and where its operands lie.
//
// Heads go in units of 16, the columns of a tile; the last unit is padded with heads of zeros. Positions go in spans of
// 256, aligned to absolute position. Within a span, for one query row and unit:
//   scores s[t, h] = scale * (latent row t . query h), BF16 inputs, one tile accumulation over the row's width;
//   m[h] = max over t;  p[t, h] = exp(s - m) in FP32;  l[h] = sum over t, as 4 chains (t mod 4) and a fixed tree;
//   o[h, :] = sum over t of bf16(p[t, h]) c[t, :], one tile accumulation over 32 positions an instruction, ascending.
// Spans merge in the order of position:
//   m' = max(m, m_s), a = exp(m - m'), b = exp(m_s - m');  l = fma(l, a, l_s b);  o = fma(o, a, o_s b).
// The result is o / l (by a multiplication with 1 / l), rounded to BF16. Which rows are computed together, and which
// thread computes a span, never shows.
//
// A position's row is [rk padded to 32][dr padded to 32] BF16, zeros in the padding. A KV block of 32 positions holds
// the rows in steps of 32 values: [steps][32 positions][32] BF16, so that tiles of 16 positions are read one after the
// other from the block's begin to its end. Rows that lie whole would have the tiles jump from page to page, and the
// processor loses track of what it should fetch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/amx_layout.hpp"

namespace troupe::kernels {

inline constexpr int unit_heads = tile_columns;
inline constexpr int span_positions = 256;
// Units of one sequence that are attended together: enough to share the reordered latents, few enough that their
// results stay in the second-level cache.
inline constexpr int units_together = 16;

struct amx_attention {
  int heads, rk, dr;
  float scale;
  bool chained = false;  // the order of values in a KV block's rows (amx_layout.hpp)

  constexpr int units() const { return (heads + unit_heads - 1) / unit_heads; }
  constexpr int latent_steps() const { return tile_steps(rk); }
  constexpr int steps() const { return tile_steps(rk) + tile_steps(dr); }
  constexpr int width() const { return steps() * tile_depth; }                                // of a latent row
  constexpr ptrdiff_t block_step() const { return ptrdiff_t{block_positions} * tile_depth; }  // elements of a block
  // Where step `step` of position `position` (0 .. 31) begins in a block, in elements.
  constexpr ptrdiff_t latent_position(int position, int step) const {
    return step * block_step() + ptrdiff_t{position} * tile_depth;
  }
  // A unit's queries: tiles [steps][16 pairs of inputs][16 heads][2] BF16.
  constexpr ptrdiff_t unit_query() const { return ptrdiff_t{steps()} * tile_elements; }
  // A unit's partial result: m [16], l [16], then o as tiles [2 latent_steps][16 heads][16] FP32.
  constexpr ptrdiff_t unit_partial() const {
    return 2 * unit_heads + ptrdiff_t{latent_steps()} * 2 * unit_heads * tile_columns;
  }
};

// One row's unit: its queries, where its result goes, and how many positions it sees.
struct amx_attention_unit {
  const uint16_t* query;
  int length;
  float* result;  // [unit_partial]
};

// Latents [32 begin, 32 end) of a row.
struct step_range {
  int begin, end;
};

}  // namespace troupe::kernels
