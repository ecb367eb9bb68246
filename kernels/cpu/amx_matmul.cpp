#include "kernels/cpu/amx_matmul.hpp"

#include <algorithm>

#include "kernels/cpu/amx_decode.hpp"
#include "kernels/cpu/amx_few_rows.hpp"
#include "kernels/cpu/amx_steps.hpp"
#include "kernels/cpu/amx_tiles.hpp"
#include "kernels/cpu/avx512_lanes.hpp"
#include "kernels/cpu/exp.hpp"
#include "kernels/cpu/f32_rows.hpp"

namespace troupe::kernels {
namespace {

constexpr ptrdiff_t tile_sums = tile_rows * tile_columns;
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

const uint16_t* input_tiles(const amx_product& call, int row, int step) {
  return call.x + (ptrdiff_t{row / tile_rows} * tile_steps(call.k) + step) * tile_elements;
}

// Continues the sums of `Rows` row tiles at `sums`, unless the first step is 0, over `count` steps at `w`.
template <int Rows, int Columns>
void bf16_block(const uint16_t* x, ptrdiff_t x_stride, const uint16_t* w, int first_step, int count,
                const prefetch_plan& ahead, float* sums) {
  if (first_step == 0)
    zero_tiles<Rows, Columns>();
  else
    load_tiles<Rows, Columns>(sums);
  add_products<Rows, Columns>(x, x_stride, w, count, ahead);
  store_tiles<Rows, Columns>(sums);
}

// The same over steps that are taken here. Returns where they lie.
template <int Rows, int Columns, class Steps>
const uint16_t* bf16_first_block(const uint16_t* x, ptrdiff_t x_stride, Steps& w, int first_step, int count,
                                 prefetch_plan ahead, float* sums) {
  if (first_step == 0)
    zero_tiles<Rows, Columns>();
  else
    load_tiles<Rows, Columns>(sums);
  const uint16_t* begin = nullptr;
  for (int i = 0; i < count; ++i) {
    const uint16_t* from = w.step(first_step + i, i % steps_in_block);
    if (i == 0) begin = from;
    add_products<Rows, Columns>(x + ptrdiff_t{i} * tile_elements, x_stride, from, 1, ahead);
    ahead.at += ptrdiff_t{ahead.lines} * line_bytes;
  }
  store_tiles<Rows, Columns>(sums);
  return begin;
}

template <int Columns, class Steps>
void bf16_panel(const amx_product& call, const panel& p, const row_range& rows, panel_sums& sums) {
  Steps w(call, p);
  const int steps = tile_steps(call.k), tiles = rows.tiles();
  const ptrdiff_t row_tile = ptrdiff_t{steps} * tile_elements;
  // More rows than tiles hold pass block by block over the inputs, so that a block's weights stay in the first-level
  // cache from one pass to the next. Weights come from memory: the passes share in fetching those some steps ahead,
  // unless other rows did.
  const int passes = (tiles + 1) / 2;
  const int block = passes == 1 ? steps : steps_in_block;
  const int lines = rows.first > 0 ? 0 : (Steps::lines + passes - 1) / passes;
  for (int step = 0; step < steps; step += block) {
    const int count = steps - step < block ? steps - step : block;
    const uint16_t* x = input_tiles(call, rows.first, step);
    prefetch_plan ahead{w.at(step + steps_in_block), lines};
    const uint16_t* from = tiles == 1 ? bf16_first_block<1, Columns>(x, row_tile, w, step, count, ahead, sums.tile)
                                      : bf16_first_block<2, Columns>(x, row_tile, w, step, count, ahead, sums.tile);
    ahead.at += ptrdiff_t{lines} * count * line_bytes;
    for (int t = 2; t < tiles; t += 2) {
      x += 2 * row_tile;
      float* at = sums.tile + ptrdiff_t{t} * 2 * tile_sums;
      if (t + 1 < tiles)
        bf16_block<2, Columns>(x, row_tile, from, step, count, ahead, at);
      else
        bf16_block<1, Columns>(x, row_tile, from, step, count, ahead, at);
      ahead.at += ptrdiff_t{lines} * count * line_bytes;
    }
  }
}

// Two whole panels of BF16 weights of one width and storage, for at most one row tile.
void bf16_two_panels(const amx_product& a, const panel& first, const amx_product& b, const panel& second,
                     panel_sums* sums) {
  const int steps = tile_steps(a.k);
  zero_tiles<2, 2>();
  if (a.storage == weight_storage::bf16) {
    add_two_panels<true>(a.x, bf16_steps(a, first).w, bf16_steps(b, second).w, steps);
  } else {
    coded_steps w[2] = {{a, first}, {b, second}};
    constexpr fetch_distance ahead{4 * coded_steps::tile, 0};
    for (int step = 0; step < steps; ++step)
      add_two_panels<false>(input_tiles(a, 0, step), w[0].step(step, 0, ahead), w[1].step(step, 0, ahead), 1);
  }
  constexpr ptrdiff_t row_bytes = 64;
  _tile_stored(0, sums[0].tile, row_bytes);
  _tile_stored(1, sums[0].tile + tile_sums, row_bytes);
  _tile_stored(2, sums[1].tile, row_bytes);
  _tile_stored(3, sums[1].tile + tile_sums, row_bytes);
  finish_stores();
}

// sums = fma(scale, partial, sums) for one tile.
[[gnu::always_inline]] inline void add_scaled(const float* partial, float scale, float* sums) {
  const __m512 s = _mm512_set1_ps(scale);
  for (int i = 0; i < tile_sums; i += lane_count)
    _mm512_store_ps(sums + i, _mm512_fmadd_ps(s, _mm512_load_ps(partial + i), _mm512_load_ps(sums + i)));
}

// Stores the partial sums of a scale block and adds them to `sums` with their scales.
template <int Rows, int Columns>
[[gnu::always_inline]] inline void add_block(const e4m3_steps& w, int block, float* sums) {
  alignas(64) float partial[block_sums];
  store_tiles<Rows, Columns>(partial);
  for (int r = 0; r < Rows; ++r)
    for (int c = 0; c < Columns; ++c)
      add_scaled(partial + (2 * r + c) * tile_sums, w.scales[c][block], sums + (2 * r + c) * tile_sums);
}

template <int Rows, int Columns>
void e4m3_block(const uint16_t* x, ptrdiff_t x_stride, const e4m3_steps& w, int block, int count, float* sums) {
  accumulate_tiles<Rows, Columns>(x, x_stride, w.decoded[0], count);
  add_block<Rows, Columns>(w, block, sums);
}

// The same, of steps that are decoded here.
template <int Rows, int Columns>
void e4m3_first_block(const uint16_t* x, ptrdiff_t x_stride, e4m3_steps& w, int block, int count, float* sums) {
  constexpr fetch_distance ahead{8 * e4m3_steps::tile, 14 * e4m3_steps::tile};
  zero_tiles<Rows, Columns>();
  for (int i = 0; i < count; ++i)
    add_products<Rows, Columns>(x + ptrdiff_t{i} * tile_elements, x_stride,
                                w.step(block * steps_in_scale_block + i, ahead), 1, {});
  add_block<Rows, Columns>(w, block, sums);
}

void zero_sums(panel_sums& sums, int tiles) {
  for (ptrdiff_t i = 0; i < tiles * 2 * tile_sums; i += lane_count) _mm512_store_ps(sums.tile + i, _mm512_setzero_ps());
}

template <int Columns>
void e4m3_panel(const amx_product& call, const panel& p, const row_range& rows, panel_sums& sums) {
  e4m3_steps w(call, p);
  const int steps = tile_steps(call.k), tiles = rows.tiles();
  const ptrdiff_t row_tile = ptrdiff_t{steps} * tile_elements;
  zero_sums(sums, tiles);
  for (int step = 0; step < steps; step += steps_in_scale_block) {
    const int block = step / steps_in_scale_block;
    const int count = steps - step < steps_in_scale_block ? steps - step : steps_in_scale_block;
    const uint16_t* x = input_tiles(call, rows.first, step);
    tiles == 1 ? e4m3_first_block<1, Columns>(x, row_tile, w, block, count, sums.tile)
               : e4m3_first_block<2, Columns>(x, row_tile, w, block, count, sums.tile);
    for (int t = 2; t < tiles; t += 2) {
      x += 2 * row_tile;
      float* at = sums.tile + ptrdiff_t{t} * 2 * tile_sums;
      if (t + 1 < tiles)
        e4m3_block<2, Columns>(x, row_tile, w, block, count, at);
      else
        e4m3_block<1, Columns>(x, row_tile, w, block, count, at);
    }
  }
}

// Two whole panels of FP8 weights of one width, for at most one row tile.
void e4m3_two_panels(const amx_product& a, const panel& first, const amx_product& b, const panel& second,
                     panel_sums* sums) {
  const int steps = tile_steps(a.k);
  e4m3_steps w[2] = {{a, first}, {b, second}};
  zero_sums(sums[0], 1);
  zero_sums(sums[1], 1);
  constexpr fetch_distance ahead{4 * e4m3_steps::tile, 0};
  for (int step = 0; step < steps; step += steps_in_scale_block) {
    const int block = step / steps_in_scale_block;
    zero_tiles<2, 2>();
    for (int i = step; i < steps && i < step + steps_in_scale_block; ++i)
      add_two_panels<false>(input_tiles(a, 0, i), w[0].step(i, ahead), w[1].step(i, ahead), 1);
    alignas(64) float partial[block_sums];
    store_tiles<2, 2>(partial);
    for (int i = 0; i < 4; ++i)
      add_scaled(partial + i * tile_sums, w[i / 2].scales[i % 2][block], sums[i / 2].tile + i % 2 * tile_sums);
  }
}

// Two whole panels of weights of one width and storage, for at most one row tile.
void two_panels(const amx_product& a, const panel& first, const amx_product& b, const panel& second, panel_sums* sums) {
  a.storage == weight_storage::e4m3 ? e4m3_two_panels(a, first, b, second, sums)
                                    : bf16_two_panels(a, first, b, second, sums);
}

template <int Columns>
void multiply_panel(const amx_product& call, const panel& p, const row_range& rows, panel_sums& sums) {
  switch (call.storage) {
    case weight_storage::e4m3: return e4m3_panel<Columns>(call, p, rows, sums);
    case weight_storage::bf16_coded: return bf16_panel<Columns, coded_steps>(call, p, rows, sums);
    default: return bf16_panel<Columns, bf16_steps>(call, p, rows, sums);
  }
}

void multiply_panel(const amx_product& call, const panel& p, const row_range& rows, panel_sums& sums) {
  p.columns == 2 ? multiply_panel<2>(call, p, rows, sums) : multiply_panel<1>(call, p, rows, sums);
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
template <class Source, class Sink>
void multiply_few(const amx_product& call, Sink sink) {
  few_sums sums;
  const int end = (call.n_end + tile_columns - 1) / tile_columns;
  for (int tile = call.n_begin / tile_columns; tile < end; tile += few_tiles_together) {
    const int count = end - tile < few_tiles_together ? end - tile : few_tiles_together;
    few_tiles<Source> tiles;
    for (int t = 0; t < count; ++t) tiles.add(call, tile + t);
    tiles.multiply(call, few_tiles_together / 2, sums);
    sink(finished_part{tile * tile_columns, count, {0, call.m}},
         [&](int r, int c) { return avx512::load(sums.tile[c][r]); });
  }
}

// Calls then.operator()<Source>() with the source of few rows that fits the storage.
template <class Then>
void with_source(weight_storage storage, Then then) {
  switch (storage) {
    case weight_storage::e4m3: return then.template operator()<e4m3_source>();
    case weight_storage::bf16_coded: return then.template operator()<coded_source>();
    default: return then.template operator()<bf16_source>();
  }
}

// Calls sink(part, sums) for each part of the product.
template <class Sink>
void multiply(const amx_product& call, Sink sink) {
  if (call.m <= 0) return;
  if (call.m <= few_rows) return with_source(call.storage, [&]<class Source>() { multiply_few<Source>(call, sink); });
  amx_prepare_thread();
  panel_sums sums[2];
  const bool in_pairs = call.m <= tile_rows;
  for (int column = call.n_begin; column < call.n_end;) {
    const panel p = panel_at(call, column);
    if (const int next = column + 2 * tile_columns; in_pairs && p.columns == 2 && next < call.n_end) {
      if (const panel q = panel_at(call, next); q.columns == 2) {
        two_panels(call, p, call, q, sums);
        for (int i = 0; i < 2; ++i)
          sink(finished_part{column + i * 2 * tile_columns, 2, {0, call.m}},
               [&](int r, int c) { return sums_of(sums[i], r, c); });
        column = next + 2 * tile_columns;
        continue;
      }
    }
    for (int first = 0; first < call.m; first += rows_together) {
      const row_range rows{first, call.m - first < rows_together ? call.m - first : rows_together};
      multiply_panel(call, p, rows, sums[0]);
      sink(finished_part{p.column(), p.columns, rows}, [&](int r, int c) { return sums_of(sums[0], r, c); });
    }
    column += p.columns * tile_columns;
  }
}

// silu(gate) * up of column tile c as the next product's input: zero beyond `width`, where the sums are of padding.
template <class Gates, class Ups>
[[gnu::always_inline]] inline void store_gated(int width, int column, const row_range& rows, const Gates& gates,
                                               const Ups& ups, uint16_t* out) {
  uint16_t* to = out + ptrdiff_t{column / tile_depth} * tile_elements + column % tile_depth;
  const int count = std::clamp(width - column, 0, lane_count);
  for (int r = 0; r < rows.count; ++r) {
    const auto g = gates(r);
    const auto silu = avx512::div(g, logistic_denominator<avx512>(g));
    avx512::store_bf16(to + input_row_position(rows.first + r, width), avx512::keep(avx512::mul(silu, ups(r)), count));
  }
}

template <class Source>
void gated_few(const amx_product& gate, const amx_product& up, uint16_t* out) {
  few_sums sums;
  constexpr int together = few_tiles_together / 2;  // of either weight
  // Packed weights end with a whole panel.
  const int end = (gate.n_end + 2 * tile_columns - 1) / (2 * tile_columns) * 2;
  for (int tile = gate.n_begin / tile_columns; tile < end; tile += together) {
    const int count = end - tile < together ? end - tile : together;
    few_tiles<Source> tiles;
    for (int t = 0; t < count; ++t) tiles.add(gate, tile + t);
    for (int t = 0; t < count; ++t) tiles.add(up, tile + t);
    tiles.multiply(gate, together / 2, sums);
    for (int t = 0; t < count; ++t)
      store_gated(
          gate.n, (tile + t) * tile_columns, {0, gate.m}, [&](int r) { return avx512::load(sums.tile[t][r]); },
          [&](int r) { return avx512::load(sums.tile[count + t][r]); }, out);
  }
}

}  // namespace

void amx_prepare_thread() {
  thread_local bool configured = false;
  if (configured) return;
  configure_tiles();
  configured = true;
}

double amx_peak_work(int rounds) {
  amx_prepare_thread();
  zero_tiles<2, 2>();
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int round = 0; round < rounds; ++round) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  return 4.0 * rounds * 2 * tile_sums * tile_depth;
}

void amx_input_row(const float* x, int row, int k, uint16_t* input) {
  uint16_t* out = input + input_row_position(row, k);
  const int padded = tile_steps(k) * tile_depth;
  for (int i = 0; i < padded; i += lane_count) {
    const int left = k - i;
    const auto value = left > 0 ? avx512::load_part(x + i, left) : avx512::zero();
    avx512::store_bf16(out + ptrdiff_t{i / tile_depth} * tile_elements + i % tile_depth, value);
  }
}

void amx_input_row(const uint16_t* x, int row, int k, uint16_t* input) {
  uint16_t* out = input + input_row_position(row, k);
  for (int i = 0; i < k; i += tile_depth, out += tile_elements) {
    const int left = k - i;
    const __mmask32 mask = left >= tile_depth ? ~__mmask32{0} : (__mmask32{1} << left) - 1;
    _mm512_store_si512(out, _mm512_maskz_loadu_epi16(mask, x + i));
  }
}

void amx_matmul(const amx_product& call, float* y, int64_t ldy) {
  multiply(call, [&](const finished_part& part, auto sums) {
    for (int r = 0; r < part.rows.count; ++r)
      for (int c = 0; c < part.columns; ++c) {
        const int column = part.column + c * tile_columns;
        avx512::store_part(y + (part.rows.first + r) * ldy + column, sums(r, c), call.n - column);
      }
  });
}

bool amx_matmul_apart(const amx_product& call, bool bf16, std::byte* const* rows_out) {
  const auto largest = avx512::broadcast(__builtin_bit_cast(float, 0x7f7fffffU));
  __mmask16 bad = 0;
  const auto checked = [&](avx512::reg value) {
    bad |= _mm512_cmp_ps_mask(_mm512_abs_ps(value.v), largest.v, _CMP_NLE_UQ);
    return value;
  };
  multiply(call, [&](const finished_part& part, auto sums) {
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

void amx_gated_matmul(const amx_product& gate, const amx_product& up, uint16_t* out) {
  if (gate.m <= 0) return;
  if (gate.m <= few_rows && gate.storage == up.storage)
    return with_source(gate.storage, [&]<class Source>() { gated_few<Source>(gate, up, out); });
  amx_prepare_thread();
  panel_sums sums[2];  // of the gate and of the other
  const bool in_pairs = gate.m <= tile_rows && up.storage == gate.storage;
  for (int column = gate.n_begin; column < gate.n_end; column += 2 * tile_columns) {
    const panel p{column / (2 * tile_columns), 0, 2};  // packed weights end with a whole panel
    for (int first = 0; first < gate.m; first += rows_together) {
      const row_range rows{first, gate.m - first < rows_together ? gate.m - first : rows_together};
      if (in_pairs) {
        two_panels(gate, p, up, p, sums);
      } else {
        multiply_panel(gate, p, rows, sums[0]);
        multiply_panel(up, p, rows, sums[1]);
      }
      for (int c = 0; c < 2; ++c)
        store_gated(
            gate.n, column + c * tile_columns, rows, [&](int r) { return sums_of(sums[0], r, c); },
            [&](int r) { return sums_of(sums[1], r, c); }, out);
    }
  }
}

}  // namespace troupe::kernels
