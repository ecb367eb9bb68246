#include "kernels/cpu/amx_matmul.hpp"

#include "kernels/cpu/amx_decode.hpp"
#include "kernels/cpu/amx_tiles.hpp"
#include "kernels/cpu/avx512_lanes.hpp"
#include "kernels/cpu/exp.hpp"
#include "kernels/cpu/f32_rows.hpp"

namespace troupe::kernels {
namespace {

constexpr ptrdiff_t tile_sums = tile_rows * tile_columns;
constexpr ptrdiff_t block_sums = 4 * tile_sums;  // sums of a block: [2 row tiles][2 column tiles][16][16]

// Rows that pass together over a panel of weights: their running sums stay in the first-level caches.
constexpr int rows_together = 256;
// Steps of k that many rows pass before the next are read, so that this part of a panel stays in the first-level cache.
constexpr int steps_together = 8;

// A 32-column panel, or one half of it.
struct panel {
  int index;           // of 32 columns
  int first, columns;  // column tiles [first, first + columns) of its two
  int column() const { return (index * 2 + first) * tile_columns; }
};

panel panel_at(const amx_product& call, int column) {
  const int tile = column / tile_columns;
  const int end = (call.n_end + tile_columns - 1) / tile_columns;
  const int first = tile % 2;
  return {tile / 2, first, first == 0 && tile + 1 < end ? 2 : 1};
}

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

template <int Columns>
void bf16_panel(const amx_product& call, const panel& p, const row_range& rows, panel_sums& sums) {
  const int steps = tile_steps(call.k);
  const ptrdiff_t row_tile = ptrdiff_t{steps} * tile_elements;
  const auto* w =
      reinterpret_cast<const uint16_t*>(call.body) + (ptrdiff_t{p.index} * steps * 2 + p.first) * tile_elements;
  const int tiles = rows.tiles();
  const uint16_t* x = input_tiles(call, rows.first, 0);
  if (tiles == 1) {
    accumulate_tiles<1, Columns, true>(x, row_tile, w, steps);
    return store_tiles<1, Columns>(sums.tile);
  }
  if (tiles == 2) {
    accumulate_tiles<2, Columns, true>(x, row_tile, w, steps);
    return store_tiles<2, Columns>(sums.tile);
  }
  for (int step = 0; step < steps; step += steps_together) {
    const int count = steps - step < steps_together ? steps - step : steps_together;
    const uint16_t* part = w + ptrdiff_t{step} * 2 * tile_elements;
    const uint16_t* from = x + ptrdiff_t{step} * tile_elements;
    for (int t = 0; t < tiles; t += 2, from += 2 * row_tile) {
      float* at = sums.tile + ptrdiff_t{t} * 2 * tile_sums;
      const bool pair = t + 1 < tiles;
      if (step > 0)
        pair ? load_tiles<2, Columns>(at) : load_tiles<1, Columns>(at);
      else
        pair ? zero_tiles<2, Columns>() : zero_tiles<1, Columns>();
      // Only the first pass finds the weights in memory.
      if (pair && t == 0)
        add_products<2, Columns, true>(from, row_tile, part, count);
      else if (pair)
        add_products<2, Columns, false>(from, row_tile, part, count);
      else
        add_products<1, Columns, false>(from, row_tile, part, count);
      pair ? store_tiles<2, Columns>(at) : store_tiles<1, Columns>(at);
    }
  }
}

// sums = fma(scale, partial, sums) for one tile.
[[gnu::always_inline]] inline void add_scaled(const float* partial, float scale, float* sums) {
  const __m512 s = _mm512_set1_ps(scale);
  for (int i = 0; i < tile_sums; i += lane_count)
    _mm512_store_ps(sums + i, _mm512_fmadd_ps(s, _mm512_load_ps(partial + i), _mm512_load_ps(sums + i)));
}

template <int Rows, int Columns>
void e4m3_block(const uint16_t* x, ptrdiff_t x_stride, const uint16_t* w, int steps, const float* scale, float* sums) {
  alignas(64) float partial[block_sums];
  accumulate_tiles<Rows, Columns, false>(x, x_stride, w, steps);
  store_tiles<Rows, Columns>(partial);
  for (int r = 0; r < Rows; ++r)
    for (int c = 0; c < Columns; ++c)
      add_scaled(partial + (2 * r + c) * tile_sums, scale[c], sums + (2 * r + c) * tile_sums);
}

template <int Columns>
void e4m3_panel(const amx_product& call, const panel& p, const row_range& rows, panel_sums& sums) {
  alignas(64) uint16_t w[steps_in_scale_block * 2 * tile_elements];
  const int steps = tile_steps(call.k);
  const int blocks = (call.k + scale_block - 1) / scale_block;
  const int tiles = rows.tiles();
  const ptrdiff_t row_tile = ptrdiff_t{steps} * tile_elements;
  const auto* codes =
      reinterpret_cast<const uint8_t*>(call.body) + (ptrdiff_t{p.index} * steps * 2 + p.first) * tile_elements;
  const float* scales = call.scales + ptrdiff_t{p.index * 2 + p.first} * blocks;
  for (ptrdiff_t i = 0; i < tiles * 2 * tile_sums; i += lane_count) _mm512_store_ps(sums.tile + i, _mm512_setzero_ps());
  for (int block = 0; block < blocks; ++block) {
    const int first_step = block * steps_in_scale_block;
    const int count = steps - first_step < steps_in_scale_block ? steps - first_step : steps_in_scale_block;
    for (int c = 0; c < Columns; ++c)
      decode_tiles(codes + (ptrdiff_t{first_step} * 2 + c) * tile_elements, w + c * tile_elements, count, 2);
    const float scale[2] = {scales[block], Columns > 1 ? scales[blocks + block] : 0};
    const uint16_t* x = input_tiles(call, rows.first, first_step);
    for (int t = 0; t < tiles; t += 2, x += 2 * row_tile) {
      float* at = sums.tile + ptrdiff_t{t} * 2 * tile_sums;
      if (t + 1 < tiles)
        e4m3_block<2, Columns>(x, row_tile, w, count, scale, at);
      else
        e4m3_block<1, Columns>(x, row_tile, w, count, scale, at);
    }
  }
}

void multiply_panel(const amx_product& call, const panel& p, const row_range& rows, panel_sums& sums) {
  if (call.storage == weight_storage::e4m3) {
    p.columns == 2 ? e4m3_panel<2>(call, p, rows, sums) : e4m3_panel<1>(call, p, rows, sums);
  } else {
    p.columns == 2 ? bf16_panel<2>(call, p, rows, sums) : bf16_panel<1>(call, p, rows, sums);
  }
}

// Calls sink(panel, rows, sums) for each panel of the product.
template <class Sink>
void multiply(const amx_product& call, Sink sink) {
  amx_prepare_thread();
  panel_sums sums;
  for (int first = 0; first < call.m; first += rows_together) {
    const row_range rows{first, call.m - first < rows_together ? call.m - first : rows_together};
    for (int column = call.n_begin; column < call.n_end;) {
      const panel p = panel_at(call, column);
      multiply_panel(call, p, rows, sums);
      sink(p, rows, sums);
      column += p.columns * tile_columns;
    }
  }
}

// Row r's sums of column tile c.
[[gnu::always_inline]] inline avx512::reg sums_of(const panel_sums& sums, int r, int c) {
  return avx512::load(sums.tile + (ptrdiff_t{r / tile_rows} * 2 + c) * tile_sums + r % tile_rows * tile_columns);
}

}  // namespace

void amx_prepare_thread() {
  thread_local bool configured = false;
  if (configured) return;
  configure_tiles();
  configured = true;
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
  multiply(call, [&](const panel& p, const row_range& rows, const panel_sums& sums) {
    for (int c = 0; c < p.columns; ++c) {
      const int column = p.column() + c * tile_columns;
      for (int r = 0; r < rows.count; ++r)
        avx512::store_part(y + (rows.first + r) * ldy + column, sums_of(sums, r, c), call.n - column);
    }
  });
}

bool amx_matmul_apart(const amx_product& call, bool bf16, std::byte* const* rows_out) {
  const auto largest = avx512::broadcast(__builtin_bit_cast(float, 0x7f7fffffU));
  __mmask16 bad = 0;
  multiply(call, [&](const panel& p, const row_range& rows, const panel_sums& sums) {
    for (int c = 0; c < p.columns; ++c) {
      const int column = p.column() + c * tile_columns;
      const int count = call.n - column < tile_columns ? call.n - column : tile_columns;
      for (int r = 0; r < rows.count; ++r) {
        const auto value = avx512::keep(sums_of(sums, r, c), count);
        bad |= _mm512_cmp_ps_mask(_mm512_abs_ps(value.v), largest.v, _CMP_NLE_UQ);
        std::byte* to = rows_out[rows.first + r];
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
  amx_prepare_thread();
  panel_sums gates, ups;
  for (int first = 0; first < gate.m; first += rows_together) {
    const row_range rows{first, gate.m - first < rows_together ? gate.m - first : rows_together};
    for (int column = gate.n_begin; column < gate.n_end; column += 2 * tile_columns) {
      const panel p{column / (2 * tile_columns), 0, 2};  // packed weights end with a whole panel
      multiply_panel(gate, p, rows, gates);
      multiply_panel(up, p, rows, ups);
      uint16_t* to = out + ptrdiff_t{p.index} * tile_elements;
      for (int r = 0; r < rows.count; ++r) {
        uint16_t* at = to + input_row_position(rows.first + r, gate.n);
        for (int c = 0; c < 2; ++c) {
          const auto g = sums_of(gates, r, c);
          const auto silu = avx512::div(g, logistic_denominator<avx512>(g));
          avx512::store_bf16(at + c * tile_columns, avx512::mul(silu, sums_of(ups, r, c)));
        }
      }
    }
  }
}

}  // namespace troupe::kernels
