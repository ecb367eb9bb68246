// The matrix products of profile amx_bf16 over tile registers `T` (see amx_tiles.hpp).
//
// Inputs are BF16. BF16 weights, coded or not, accumulate in one FP32 tile over all of k, 32 inputs an instruction,
// ascending. FP8 weights are decoded exactly to BF16; each 128 inputs accumulate in a tile from zero, and then y =
// fma(scale, partial, y) in FP32, so that scales are never rounded. One formula for every number of rows: what does not
// exist of the last tile of rows is dropped.
#pragma once

#include <algorithm>

#include "kernels/cpu/amx_decode.hpp"
#include "kernels/cpu/amx_few_rows.hpp"
#include "kernels/cpu/amx_order.hpp"
#include "kernels/cpu/amx_steps.hpp"
#include "kernels/cpu/amx_tiles.hpp"
#include "kernels/cpu/avx512_lanes.hpp"
#include "kernels/cpu/exp.hpp"
#include "kernels/cpu/f32_rows.hpp"

namespace troupe::kernels {
namespace {

constexpr ptrdiff_t block_sums = 4 * tile_sums;  // sums of a block: [2 row tiles][2 column tiles][16][16]

// Rows that pass together over a panel of weights: their running sums stay in the first-level cache.
constexpr int rows_together = 128;
// Rows [first, first + count) of the input, at most rows_together.
struct row_range {
  int first, count;
  int tiles() const { return (count + tile_rows - 1) / tile_rows; }
};

// `tile` [row tiles][2][16][16] holds a panel's sums of some rows.
struct panel_sums {
  alignas(64) float tile[rows_together / tile_rows * 2 * tile_sums];
};

// The input's row tiles `t` and t + 1 of some rows, or the last one.
input_rows input_of(const amx_product& call, const row_range& rows, int t) {
  const ptrdiff_t stride = ptrdiff_t{tile_steps(call.k)} * tile_elements;
  const int left = rows.count - t * tile_rows;
  const int last = left > 2 * tile_rows ? tile_rows : left > tile_rows ? left - tile_rows : left;
  return {call.x + (rows.first / tile_rows + t) * stride, stride, last};
}

// Continues the sums of `Rows` row tiles at `sums`, unless the first step is 0, over `count` steps at `w`.
template <class T, int Rows, int Columns>
void bf16_block(const input_rows& x, const uint16_t* w, int first_step, int count, const prefetch_plan& ahead,
                float* sums) {
  if (first_step == 0)
    zero_tiles<T, Rows, Columns>(sums);
  else
    resume_tiles<T, Rows, Columns>(sums);
  add_products<T, Rows, Columns>(x, w, count, ahead);
  store_tiles<T, Rows, Columns>(sums);
}

// The same over steps that are taken here. Returns where they lie.
template <class T, int Rows, int Columns, class Steps>
const uint16_t* bf16_first_block(const input_rows& x, Steps& w, int first_step, int count, prefetch_plan ahead,
                                 float* sums) {
  if (first_step == 0)
    zero_tiles<T, Rows, Columns>(sums);
  else
    resume_tiles<T, Rows, Columns>(sums);
  const uint16_t* begin = nullptr;
  for (int i = 0; i < count; ++i) {
    const uint16_t* from = w.step(first_step + i, i % steps_in_block);
    if (i == 0) begin = from;
    add_products<T, Rows, Columns>(x.from_step(i), from, 1, ahead);
    ahead.at += ptrdiff_t{ahead.lines} * line_bytes;
  }
  store_tiles<T, Rows, Columns>(sums);
  return begin;
}

template <class T, int Columns, class Steps>
void bf16_panel(const amx_product& call, const panel& p, const row_range& rows, panel_sums& sums) {
  Steps w(call, p);
  const int steps = tile_steps(call.k), tiles = rows.tiles();
  // More rows than tiles hold pass block by block over the inputs, so that a block's weights stay in the first-level
  // cache from one pass to the next. Weights come from memory: the passes share in fetching those some steps ahead,
  // unless other rows did.
  const int passes = (tiles + 1) / 2;
  const int block = passes == 1 ? steps : steps_in_block;
  const int lines = rows.first > 0 ? 0 : (Steps::lines + passes - 1) / passes;
  const typename T::mode mode;
  for (int step = 0; step < steps; step += block) {
    const int count = steps - step < block ? steps - step : block;
    input_rows x = input_of(call, rows, 0).from_step(step);
    prefetch_plan ahead{w.at(step + steps_in_block), lines};
    const uint16_t* from = tiles == 1 ? bf16_first_block<T, 1, Columns>(x, w, step, count, ahead, sums.tile)
                                      : bf16_first_block<T, 2, Columns>(x, w, step, count, ahead, sums.tile);
    ahead.at += ptrdiff_t{lines} * count * line_bytes;
    for (int t = 2; t < tiles; t += 2) {
      x = input_of(call, rows, t).from_step(step);
      float* at = sums.tile + ptrdiff_t{t} * 2 * tile_sums;
      if (t + 1 < tiles)
        bf16_block<T, 2, Columns>(x, from, step, count, ahead, at);
      else
        bf16_block<T, 1, Columns>(x, from, step, count, ahead, at);
      ahead.at += ptrdiff_t{lines} * count * line_bytes;
    }
  }
}

// Two whole panels of BF16 weights of one width and storage, for at most one row tile.
template <class T>
void bf16_two_panels(const amx_product& a, const panel& first, const amx_product& b, const panel& second,
                     panel_sums* sums) {
  const int steps = tile_steps(a.k);
  const input_rows x = input_of(a, {0, a.m}, 0);
  float* const tiles[4] = {sums[0].tile, sums[0].tile + tile_sums, sums[1].tile, sums[1].tile + tile_sums};
  const typename T::mode mode;
  T::template zero<0>(tiles[0]);
  T::template zero<1>(tiles[1]);
  T::template zero<2>(tiles[2]);
  T::template zero<3>(tiles[3]);
  if (a.storage == weight_storage::bf16) {
    add_two_panels<T, true>(x, bf16_steps(a, first).w, bf16_steps(b, second).w, steps);
  } else {
    coded_steps<T> w[2] = {{a, first}, {b, second}};
    constexpr fetch_distance ahead{4 * coded_steps<T>::tile, 0};
    for (int step = 0; step < steps; ++step)
      add_two_panels<T, false>(x.from_step(step), w[0].step(step, 0, ahead), w[1].step(step, 0, ahead), 1);
  }
  T::template store<0>(tiles[0]);
  T::template store<1>(tiles[1]);
  T::template store<2>(tiles[2]);
  T::template store<3>(tiles[3]);
  finish_stores();
}

// sums = fma(scale, partial, sums) for one tile.
[[gnu::always_inline]] inline void add_scaled(const float* partial, float scale, float* sums) {
  const __m512 s = _mm512_set1_ps(scale);
  for (int i = 0; i < tile_sums; i += lane_count)
    _mm512_store_ps(sums + i, _mm512_fmadd_ps(s, _mm512_load_ps(partial + i), _mm512_load_ps(sums + i)));
}

// Stores the sums of a scale block to `partial` and adds them to `sums` with their scales.
template <class T, int Rows, int Columns>
[[gnu::always_inline]] inline void add_block(const e4m3_steps<T>& w, int block, float* partial, float* sums) {
  store_tiles<T, Rows, Columns>(partial);
  for (int r = 0; r < Rows; ++r)
    for (int c = 0; c < Columns; ++c)
      add_scaled(partial + (2 * r + c) * tile_sums, w.scales[c][block], sums + (2 * r + c) * tile_sums);
}

template <class T, int Rows, int Columns>
void e4m3_block(const input_rows& x, const e4m3_steps<T>& w, int block, int count, float* sums) {
  alignas(64) float partial[block_sums];
  zero_tiles<T, Rows, Columns>(partial);
  {
    const typename T::mode mode;
    add_products<T, Rows, Columns>(x, w.decoded[0], count, {});
  }
  add_block<T, Rows, Columns>(w, block, partial, sums);
}

// The same, of steps that are decoded here.
template <class T, int Rows, int Columns>
void e4m3_first_block(const input_rows& x, e4m3_steps<T>& w, int block, int count, float* sums) {
  constexpr fetch_distance ahead{8 * e4m3_steps<T>::tile, 14 * e4m3_steps<T>::tile};
  alignas(64) float partial[block_sums];
  zero_tiles<T, Rows, Columns>(partial);
  {
    const typename T::mode mode;
    for (int i = 0; i < count; ++i)
      add_products<T, Rows, Columns>(x.from_step(i), w.step(block * steps_in_scale_block + i, ahead), 1, {});
  }
  add_block<T, Rows, Columns>(w, block, partial, sums);
}

void zero_sums(panel_sums& sums, int tiles) {
  for (ptrdiff_t i = 0; i < tiles * 2 * tile_sums; i += lane_count) _mm512_store_ps(sums.tile + i, _mm512_setzero_ps());
}

template <class T, int Columns>
void e4m3_panel(const amx_product& call, const panel& p, const row_range& rows, panel_sums& sums) {
  e4m3_steps<T> w(call, p);
  const int steps = tile_steps(call.k), tiles = rows.tiles();
  zero_sums(sums, tiles);
  for (int step = 0; step < steps; step += steps_in_scale_block) {
    const int block = step / steps_in_scale_block;
    const int count = steps - step < steps_in_scale_block ? steps - step : steps_in_scale_block;
    input_rows x = input_of(call, rows, 0).from_step(step);
    tiles == 1 ? e4m3_first_block<T, 1, Columns>(x, w, block, count, sums.tile)
               : e4m3_first_block<T, 2, Columns>(x, w, block, count, sums.tile);
    for (int t = 2; t < tiles; t += 2) {
      x = input_of(call, rows, t).from_step(step);
      float* at = sums.tile + ptrdiff_t{t} * 2 * tile_sums;
      if (t + 1 < tiles)
        e4m3_block<T, 2, Columns>(x, w, block, count, at);
      else
        e4m3_block<T, 1, Columns>(x, w, block, count, at);
    }
  }
}

// Two whole panels of FP8 weights of one width, for at most one row tile.
template <class T>
void e4m3_two_panels(const amx_product& a, const panel& first, const amx_product& b, const panel& second,
                     panel_sums* sums) {
  const int steps = tile_steps(a.k);
  const input_rows x = input_of(a, {0, a.m}, 0);
  e4m3_steps<T> w[2] = {{a, first}, {b, second}};
  zero_sums(sums[0], 1);
  zero_sums(sums[1], 1);
  constexpr fetch_distance ahead{4 * e4m3_steps<T>::tile, 0};
  for (int step = 0; step < steps; step += steps_in_scale_block) {
    const int block = step / steps_in_scale_block;
    alignas(64) float partial[block_sums];
    zero_tiles<T, 2, 2>(partial);
    {
      const typename T::mode mode;
      for (int i = step; i < steps && i < step + steps_in_scale_block; ++i)
        add_two_panels<T, false>(x.from_step(i), w[0].step(i, ahead), w[1].step(i, ahead), 1);
    }
    store_tiles<T, 2, 2>(partial);
    for (int i = 0; i < 4; ++i)
      add_scaled(partial + i * tile_sums, w[i / 2].scales[i % 2][block], sums[i / 2].tile + i % 2 * tile_sums);
  }
}

// Two whole panels of weights of one width and storage, for at most one row tile.
template <class T>
void two_panels(const amx_product& a, const panel& first, const amx_product& b, const panel& second, panel_sums* sums) {
  a.storage == weight_storage::e4m3 ? e4m3_two_panels<T>(a, first, b, second, sums)
                                    : bf16_two_panels<T>(a, first, b, second, sums);
}

template <class T, int Columns>
void multiply_panel(const amx_product& call, const panel& p, const row_range& rows, panel_sums& sums) {
  switch (call.storage) {
    case weight_storage::e4m3: return e4m3_panel<T, Columns>(call, p, rows, sums);
    case weight_storage::bf16_coded: return bf16_panel<T, Columns, coded_steps<T>>(call, p, rows, sums);
    default: return bf16_panel<T, Columns, bf16_steps>(call, p, rows, sums);
  }
}

template <class T>
void multiply_panel(const amx_product& call, const panel& p, const row_range& rows, panel_sums& sums) {
  p.columns == 2 ? multiply_panel<T, 2>(call, p, rows, sums) : multiply_panel<T, 1>(call, p, rows, sums);
}

// Row r's sums of column tile c.
[[gnu::always_inline]] inline avx512::reg sums_of(const panel_sums& sums, int r, int c) {
  return avx512::load(sums.tile + (ptrdiff_t{r / tile_rows} * 2 + c) * tile_sums + r % tile_rows * tile_columns);
}

// A range of columns and rows whose sums are there: `columns` column tiles from column `column` on.
struct finished_part {
  int column, columns;
  row_range rows;
};

// Calls sink(part, sums) for each part of a product of few rows; sums(r, c) is row r's of column tile c.
template <class T, class Source, class Sink>
void multiply_few(const amx_product& call, Sink sink) {
  few_sums sums;
  const int end = (call.n_end + tile_columns - 1) / tile_columns;
  for (int tile = call.n_begin / tile_columns; tile < end; tile += few_tiles_together) {
    const int count = end - tile < few_tiles_together ? end - tile : few_tiles_together;
    few_tiles<T, Source> tiles;
    for (int t = 0; t < count; ++t) tiles.add(call, tile + t);
    tiles.multiply(call, few_tiles_together / 2, sums);
    sink(finished_part{tile * tile_columns, count, {0, call.m}},
         [&](int r, int c) { return avx512::load(sums.all + (c * call.m + r) * tile_columns); });
  }
}

// Calls then.operator()<Source>() with the source of few rows that fits the storage.
template <class T, class Then>
void with_source(weight_storage storage, Then then) {
  switch (storage) {
    case weight_storage::e4m3: return then.template operator()<e4m3_source<T>>();
    case weight_storage::bf16_coded: return then.template operator()<coded_source<T>>();
    default: return then.template operator()<bf16_source<T>>();
  }
}

// Calls sink(part, sums) for each part of the product.
template <class T, class Sink>
void multiply(const amx_product& call, Sink sink) {
  if (call.m <= 0) return;
  if (call.m <= T::few_rows)
    return with_source<T>(call.storage, [&]<class Source>() { multiply_few<T, Source>(call, sink); });
  T::begin();
  panel_sums sums[2];
  const bool in_pairs = call.m <= tile_rows;
  for (int column = call.n_begin; column < call.n_end;) {
    const panel p = panel_at(call, column);
    if (const int next = column + 2 * tile_columns; in_pairs && p.columns == 2 && next < call.n_end) {
      if (const panel q = panel_at(call, next); q.columns == 2) {
        two_panels<T>(call, p, call, q, sums);
        for (int i = 0; i < 2; ++i)
          sink(finished_part{column + i * 2 * tile_columns, 2, {0, call.m}},
               [&](int r, int c) { return sums_of(sums[i], r, c); });
        column = next + 2 * tile_columns;
        continue;
      }
    }
    for (int first = 0; first < call.m; first += rows_together) {
      const row_range rows{first, call.m - first < rows_together ? call.m - first : rows_together};
      multiply_panel<T>(call, p, rows, sums[0]);
      sink(finished_part{p.column(), p.columns, rows}, [&](int r, int c) { return sums_of(sums[0], r, c); });
    }
    column += p.columns * tile_columns;
  }
}

// 16 of a row's inputs, rounded.
template <class T>
[[gnu::always_inline]] inline void store_inputs(uint16_t* to, avx512::reg x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), inputs_in_order<T::chained>(avx512::rounded(x)));
}

// silu(gate) * up of column tile c as the next product's input: zero beyond `width`, where the sums are of padding.
template <class T, class Gates, class Ups>
[[gnu::always_inline]] inline void store_gated(int width, int column, const row_range& rows, const Gates& gates,
                                               const Ups& ups, uint16_t* out) {
  uint16_t* to = out + ptrdiff_t{column / tile_depth} * tile_elements + column % tile_depth;
  const int count = std::clamp(width - column, 0, lane_count);
  for (int r = 0; r < rows.count; ++r) {
    const auto g = gates(r);
    const auto silu = avx512::div(g, logistic_denominator<avx512>(g));
    store_inputs<T>(to + input_row_position(rows.first + r, width), avx512::keep(avx512::mul(silu, ups(r)), count));
  }
}

template <class T, class Source>
void gated_few(const amx_product& gate, const amx_product& up, uint16_t* out) {
  few_sums sums;
  constexpr int together = few_tiles_together / 2;  // of either weight
  // Packed weights end with a whole panel.
  const int end = (gate.n_end + 2 * tile_columns - 1) / (2 * tile_columns) * 2;
  for (int tile = gate.n_begin / tile_columns; tile < end; tile += together) {
    const int count = end - tile < together ? end - tile : together;
    few_tiles<T, Source> tiles;
    for (int t = 0; t < count; ++t) tiles.add(gate, tile + t);
    for (int t = 0; t < count; ++t) tiles.add(up, tile + t);
    tiles.multiply(gate, together / 2, sums);
    const auto sums_of = [&](int t, int r) { return avx512::load(sums.all + (t * gate.m + r) * tile_columns); };
    for (int t = 0; t < count; ++t)
      store_gated<T>(
          gate.n, (tile + t) * tile_columns, {0, gate.m}, [&](int r) { return sums_of(t, r); },
          [&](int r) { return sums_of(count + t, r); }, out);
  }
}

template <class T>
double amx_peak_work(int rounds) {
  alignas(64) float sums[block_sums];
  alignas(64) const uint16_t zeros[tile_elements] = {};
  T::begin();
  zero_tiles<T, 2, 2>(sums);
  T::template input<4>(zeros, tile_rows);
  T::template input<5>(zeros, tile_rows);
  T::template weights<6>(zeros);
  T::template weights<7>(zeros);
  const typename T::mode mode;
  for (int round = 0; round < rounds; ++round) {
    T::template dot<0, 4, 6>();
    T::template dot<1, 4, 7>();
    T::template dot<2, 5, 6>();
    T::template dot<3, 5, 7>();
  }
  store_tiles<T, 2, 2>(sums);
  return 4.0 * rounds * 2 * tile_sums * tile_depth;
}

template <class T>
void amx_input_row(const float* x, int row, int k, uint16_t* input) {
  uint16_t* out = input + input_row_position(row, k);
  const int padded = tile_steps(k) * tile_depth;
  for (int i = 0; i < padded; i += lane_count) {
    const int left = k - i;
    const auto value = left > 0 ? avx512::load_part(x + i, left) : avx512::zero();
    store_inputs<T>(out + ptrdiff_t{i / tile_depth} * tile_elements + i % tile_depth, value);
  }
}

template <class T>
void amx_input_row(const uint16_t* x, int row, int k, uint16_t* input) {
  uint16_t* out = input + input_row_position(row, k);
  for (int i = 0; i < k; i += tile_depth, out += tile_elements) {
    const int left = k - i;
    const __mmask32 mask = left >= tile_depth ? ~__mmask32{0} : (__mmask32{1} << left) - 1;
    _mm512_store_si512(out, inputs_in_order<T::chained>(_mm512_maskz_loadu_epi16(mask, x + i)));
  }
}

template <class T>
void amx_matmul(const amx_product& call, float* y, int64_t ldy) {
  multiply<T>(call, [&](const finished_part& part, auto sums) {
    for (int r = 0; r < part.rows.count; ++r)
      for (int c = 0; c < part.columns; ++c) {
        const int column = part.column + c * tile_columns;
        avx512::store_part(y + (part.rows.first + r) * ldy + column, sums(r, c), call.n - column);
      }
  });
}

template <class T>
bool amx_matmul_apart(const amx_product& call, bool bf16, std::byte* const* rows_out) {
  const auto largest = avx512::broadcast(__builtin_bit_cast(float, 0x7f7fffffU));
  __mmask16 bad = 0;
  const auto checked = [&](avx512::reg value) {
    bad |= _mm512_cmp_ps_mask(_mm512_abs_ps(value.v), largest.v, _CMP_NLE_UQ);
    return value;
  };
  multiply<T>(call, [&](const finished_part& part, auto sums) {
    for (int r = 0; r < part.rows.count; ++r) {
      std::byte* to = rows_out[part.rows.first + r];
      for (int c = 0; c < part.columns; ++c) {
        const int column = part.column + c * tile_columns;
        const int count = call.n - column < tile_columns ? call.n - column : tile_columns;
        const auto value = checked(avx512::keep(sums(r, c), count));
        if (bf16)
          _mm256_mask_storeu_epi16(reinterpret_cast<uint16_t*>(to) + column, avx512::first(count),
                                   avx512::rounded(value));
        else
          avx512::store_part(reinterpret_cast<float*>(to) + column, value, count);
      }
    }
  });
  return bad == 0;
}

template <class T>
void amx_gated_matmul(const amx_product& gate, const amx_product& up, uint16_t* out) {
  if (gate.m <= 0) return;
  if (gate.m <= T::few_rows && gate.storage == up.storage)
    return with_source<T>(gate.storage, [&]<class Source>() { gated_few<T, Source>(gate, up, out); });
  T::begin();
  panel_sums sums[2];  // of the gate and of the other
  const bool in_pairs = gate.m <= tile_rows && up.storage == gate.storage;
  for (int column = gate.n_begin; column < gate.n_end; column += 2 * tile_columns) {
    const panel p{column / (2 * tile_columns), 0, 2};  // packed weights end with a whole panel
    for (int first = 0; first < gate.m; first += rows_together) {
      const row_range rows{first, gate.m - first < rows_together ? gate.m - first : rows_together};
      if (in_pairs) {
        two_panels<T>(gate, p, up, p, sums);
      } else {
        multiply_panel<T>(gate, p, rows, sums[0]);
        multiply_panel<T>(up, p, rows, sums[1]);
      }
      for (int c = 0; c < 2; ++c)
        store_gated<T>(
            gate.n, column + c * tile_columns, rows, [&](int r) { return sums_of(sums[0], r, c); },
            [&](int r) { return sums_of(sums[1], r, c); }, out);
    }
  }
}

}  // namespace
}  // namespace troupe::kernels
