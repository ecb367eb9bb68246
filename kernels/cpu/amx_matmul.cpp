#include "kernels/cpu/amx_matmul.hpp"

#include "kernels/cpu/amx_rows.hpp"
#include "kernels/cpu/amx_tiles.hpp"

namespace troupe::kernels {
namespace {

constexpr ptrdiff_t tile_sums = tile_rows * tile_columns;
constexpr ptrdiff_t block_sums = 4 * tile_sums;  // the four accumulators

// Rows that pass together over each panel of weights: enough to reuse it from the cache, few enough that
// their rounded inputs stay in the second-level cache.
int rows_together(int m, int k) {
  constexpr int cache_bytes = 3 << 19;
  const int fit = cache_bytes / (tile_steps(k) * tile_depth * 2) / 32 * 32;
  const int chunk = fit < 64 ? 64 : fit > 512 ? 512 : fit;
  return m < chunk ? (m + tile_rows - 1) / tile_rows * tile_rows : chunk;
}

// One thread's working memory, cut into its uses.
struct workspace {
  uint16_t* x;    // rounded rows in tile order
  uint16_t* w;    // decoded weights: [4 steps][2][tile]
  float* stored;  // accumulators on their way out: [2][2][16][16]
  float* sums;    // FP8: running sums [row tiles][2][16][16]

  workspace(std::byte* memory, int rows) {
    stored = reinterpret_cast<float*>(memory);
    w = reinterpret_cast<uint16_t*>(stored + block_sums);
    sums = reinterpret_cast<float*>(w + ptrdiff_t{steps_in_scale_block} * 2 * tile_elements);
    x = reinterpret_cast<uint16_t*>(sums + ptrdiff_t{rows} * 2 * tile_columns);
  }
};

// A 32-column panel, or one half of it.
struct panel {
  int index;           // of 32 columns
  int first, columns;  // column tiles [first, first + columns) of its two
};

panel panel_at(const amx_product& call, int column) {
  const int tile = column / tile_columns;
  const int end = (call.n_end + tile_columns - 1) / tile_columns;
  const int first = tile % 2;
  return {tile / 2, first, first == 0 && tile + 1 < end ? 2 : 1};
}

// Copies `Rows` x columns tiles from `tiles` [Rows][2][16][16] to y.
void copy_block(const amx_product& call, const panel& p, int row, int row_tiles, const float* tiles) {
  for (int r = 0; r < row_tiles; ++r)
    for (int c = 0; c < p.columns; ++c) {
      const int first_row = row + r * tile_rows;
      const int column = (p.index * 2 + p.first + c) * tile_columns;
      copy_tile(tiles + (2 * r + c) * tile_sums, call.y + first_row * call.ldy + column, call.ldy, call.m - first_row,
                call.n - column);
    }
}

template <int Rows, int Columns, bool Prefetch>
void bf16_block(const amx_product& call, const workspace& space, const panel& p, const uint16_t* w, int first_row,
                int row) {
  const int steps = tile_steps(call.k);
  const ptrdiff_t row_tile = ptrdiff_t{steps} * tile_elements;
  accumulate_tiles<Rows, Columns, Prefetch>(space.x + row / tile_rows * row_tile, row_tile, w, steps);
  store_tiles<Rows, Columns>(space.stored);
  copy_block(call, p, first_row + row, Rows, space.stored);
}

template <int Columns>
void bf16_panel(const amx_product& call, const workspace& space, const panel& p, int first_row, int rows) {
  const auto* w = reinterpret_cast<const uint16_t*>(call.body) +
                  (ptrdiff_t{p.index} * tile_steps(call.k) * 2 + p.first) * tile_elements;
  // Only the first pass finds the weights in memory.
  if (rows <= tile_rows) return bf16_block<1, Columns, true>(call, space, p, w, first_row, 0);
  bf16_block<2, Columns, true>(call, space, p, w, first_row, 0);
  int row = 2 * tile_rows;
  for (; row + tile_rows < rows; row += 2 * tile_rows) bf16_block<2, Columns, false>(call, space, p, w, first_row, row);
  if (row < rows) bf16_block<1, Columns, false>(call, space, p, w, first_row, row);
}

// sums = fma(scale, partial, sums) for one tile.
[[gnu::always_inline]] inline void add_scaled(const float* partial, float scale, float* sums) {
  const __m512 s = _mm512_set1_ps(scale);
  for (int i = 0; i < tile_sums; i += lane_count)
    _mm512_store_ps(sums + i, _mm512_fmadd_ps(s, _mm512_load_ps(partial + i), _mm512_load_ps(sums + i)));
}

template <int Rows, int Columns>
void e4m3_block(const workspace& space, const uint16_t* x, ptrdiff_t x_stride, int steps, const float* scale, int row) {
  accumulate_tiles<Rows, Columns, false>(x, x_stride, space.w, steps);
  store_tiles<Rows, Columns>(space.stored);
  float* sums = space.sums + ptrdiff_t{row / tile_rows} * 2 * tile_sums;
  for (int r = 0; r < Rows; ++r)
    for (int c = 0; c < Columns; ++c)
      add_scaled(space.stored + (2 * r + c) * tile_sums, scale[c], sums + (2 * r + c) * tile_sums);
}

template <int Columns>
void e4m3_panel(const amx_product& call, const workspace& space, const panel& p, int first_row, int rows) {
  const int steps = tile_steps(call.k);
  const int blocks = (call.k + scale_block - 1) / scale_block;
  const int row_tiles = (rows + tile_rows - 1) / tile_rows;
  const ptrdiff_t row_tile = ptrdiff_t{steps} * tile_elements;
  const auto* codes =
      reinterpret_cast<const uint8_t*>(call.body) + (ptrdiff_t{p.index} * steps * 2 + p.first) * tile_elements;
  const float* scales = call.scales + ptrdiff_t{p.index * 2 + p.first} * blocks;
  for (ptrdiff_t i = 0; i < row_tiles * 2 * tile_sums; i += lane_count)
    _mm512_store_ps(space.sums + i, _mm512_setzero_ps());
  for (int block = 0; block < blocks; ++block) {
    const int first_step = block * steps_in_scale_block;
    const int count = steps - first_step < steps_in_scale_block ? steps - first_step : steps_in_scale_block;
    for (int c = 0; c < Columns; ++c)
      decode_tiles(codes + (ptrdiff_t{first_step} * 2 + c) * tile_elements, space.w + c * tile_elements, count, 2);
    const float scale[2] = {scales[block], Columns > 1 ? scales[blocks + block] : 0};
    const uint16_t* x = space.x + ptrdiff_t{first_step} * tile_elements;
    int row = 0;
    for (; row + tile_rows < rows; row += 2 * tile_rows)
      e4m3_block<2, Columns>(space, x + row / tile_rows * row_tile, row_tile, count, scale, row);
    if (row < rows) e4m3_block<1, Columns>(space, x + row / tile_rows * row_tile, row_tile, count, scale, row);
  }
  for (int r = 0; r < row_tiles; ++r)
    copy_block(call, p, first_row + r * tile_rows, 1, space.sums + ptrdiff_t{r} * 2 * tile_sums);
}

void multiply_panel(const amx_product& call, const workspace& space, const panel& p, int first_row, int rows) {
  if (call.storage == weight_storage::e4m3) {
    p.columns == 2 ? e4m3_panel<2>(call, space, p, first_row, rows) : e4m3_panel<1>(call, space, p, first_row, rows);
  } else {
    p.columns == 2 ? bf16_panel<2>(call, space, p, first_row, rows) : bf16_panel<1>(call, space, p, first_row, rows);
  }
}

}  // namespace

size_t amx_scratch_bytes(int m, int k) {
  const auto rows = static_cast<size_t>(rows_together(m, k));
  const auto depth = static_cast<size_t>(tile_steps(k)) * tile_depth;
  return static_cast<size_t>(block_sums) * sizeof(float) +
         static_cast<size_t>(steps_in_scale_block) * 2 * tile_elements * sizeof(uint16_t) +
         rows * 2 * tile_columns * sizeof(float) + rows * depth * sizeof(uint16_t);
}

void amx_prepare_thread() {
  thread_local bool configured = false;
  if (configured) return;
  configure_tiles();
  configured = true;
}

void amx_matmul(const amx_product& call) {
  amx_prepare_thread();
  const int chunk = rows_together(call.m, call.k);
  const workspace space(call.scratch, chunk);
  for (int first_row = 0; first_row < call.m; first_row += chunk) {
    const int rows = call.m - first_row < chunk ? call.m - first_row : chunk;
    round_rows(call.x + first_row * call.ldx, call.ldx, rows, call.k, space.x);
    for (int column = call.n_begin; column < call.n_end;) {
      const panel p = panel_at(call, column);
      multiply_panel(call, space, p, first_row, rows);
      column += p.columns * tile_columns;
    }
  }
}

}  // namespace troupe::kernels
