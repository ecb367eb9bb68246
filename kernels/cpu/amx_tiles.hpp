// Tile registers: their configuration and the inner product loop. For the AMX object file alone; everything is in an
// unnamed namespace so that no other file links code made for AMX.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/amx_layout.hpp"

namespace troupe::kernels {
namespace {

// Intel SDM, LDTILECFG: palette 1 has 8 tiles of at most 16 rows of 64 bytes.
struct alignas(64) tile_configuration {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(tile_configuration) == 64);

[[gnu::always_inline]] inline void configure_tiles() {
  const tile_configuration configuration;
  // GCC 12 drops the stores to the structure if the intrinsic _tile_loadconfig is used.
  asm volatile("ldtilecfg %0" ::"m"(configuration) : "memory");
}

// The tile intrinsics do not tell the compiler that they read memory; this keeps earlier stores before them.
[[gnu::always_inline]] inline void finish_stores() { asm volatile("" ::: "memory"); }

// Tiles 0-3 accumulate (row tile r, column tile c in tile 2r + c), 4-5 hold x, 6-7 weights.

template <int Rows, int Columns>
[[gnu::always_inline]] inline void zero_tiles() {
  _tile_zero(0);
  if constexpr (Columns > 1) _tile_zero(1);
  if constexpr (Rows > 1) _tile_zero(2);
  if constexpr (Rows > 1 && Columns > 1) _tile_zero(3);
}

// Weights to fetch into the second-level cache while others are multiplied: `lines` lines a step from `at`.
struct prefetch_plan {
  const char* at = nullptr;
  int lines = 0;
};

inline constexpr int line_bytes = 64;
inline constexpr int lines_of_step = 2 * tile_elements * 2 / line_bytes;  // of both column tiles

// x: [Rows row tiles, `x_stride` elements apart][steps][16][32] BF16. w: [steps][2][tile] BF16, from the first
// column tile wanted. Adds to the accumulators.
template <int Rows, int Columns>
[[gnu::always_inline]] inline void add_products(const uint16_t* x, ptrdiff_t x_stride, const uint16_t* w, int steps,
                                                prefetch_plan ahead) {
  constexpr ptrdiff_t row_bytes = 64;
  finish_stores();
  for (int step = 0; step < steps; ++step, x += tile_elements, w += 2 * tile_elements) {
    for (int line = 0; line < ahead.lines; ++line, ahead.at += line_bytes) __builtin_prefetch(ahead.at, 0, 1);
    _tile_loadd(4, x, row_bytes);
    _tile_loadd(6, w, row_bytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (Columns > 1) {
      _tile_loadd(7, w + tile_elements, row_bytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (Rows > 1) {
      _tile_loadd(5, x + x_stride, row_bytes);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (Columns > 1) _tile_dpbf16ps(3, 5, 7);
    }
  }
}

// Continues the sums that store_tiles left at `sums`.
template <int Rows, int Columns>
[[gnu::always_inline]] inline void load_tiles(const float* sums) {
  constexpr ptrdiff_t row_bytes = 64, tile = tile_rows * tile_columns;
  finish_stores();
  _tile_loadd(0, sums, row_bytes);
  if constexpr (Columns > 1) _tile_loadd(1, sums + tile, row_bytes);
  if constexpr (Rows > 1) _tile_loadd(2, sums + 2 * tile, row_bytes);
  if constexpr (Rows > 1 && Columns > 1) _tile_loadd(3, sums + 3 * tile, row_bytes);
}

// The sums over `steps` from zero.
template <int Rows, int Columns>
[[gnu::always_inline]] inline void accumulate_tiles(const uint16_t* x, ptrdiff_t x_stride, const uint16_t* w,
                                                    int steps) {
  zero_tiles<Rows, Columns>();
  add_products<Rows, Columns>(x, x_stride, w, steps, {});
}

// Adds the products of one row tile over two panels: accumulators 0 and 1 of the first, 2 and 3 of the second. Two
// streams of weights pass, because the processor fetches them faster than one. Fetch: fetches what lies two steps
// further.
template <bool Fetch>
[[gnu::always_inline]] inline void add_two_panels(const uint16_t* x, const uint16_t* first, const uint16_t* second,
                                                  int steps) {
  constexpr ptrdiff_t row_bytes = 64, ahead = 2 * 2 * tile_elements;  // two steps
  finish_stores();
  for (int step = 0; step < steps;
       ++step, x += tile_elements, first += 2 * tile_elements, second += 2 * tile_elements) {
    for (int line = 0; Fetch && line < lines_of_step; ++line) {
      __builtin_prefetch(first + ahead + line * line_bytes / 2, 0, 1);
      __builtin_prefetch(second + ahead + line * line_bytes / 2, 0, 1);
    }
    _tile_loadd(4, x, row_bytes);
    _tile_loadd(5, first, row_bytes);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, first + tile_elements, row_bytes);
    _tile_dpbf16ps(1, 4, 6);
    _tile_loadd(7, second, row_bytes);
    _tile_dpbf16ps(2, 4, 7);
    _tile_loadd(5, second + tile_elements, row_bytes);
    _tile_dpbf16ps(3, 4, 5);
  }
}

// Stores the accumulators to `out` [Rows][2 column tiles][16][16] FP32.
template <int Rows, int Columns>
[[gnu::always_inline]] inline void store_tiles(float* out) {
  constexpr ptrdiff_t row_bytes = 64, tile = tile_rows * tile_columns;
  _tile_stored(0, out, row_bytes);
  if constexpr (Columns > 1) _tile_stored(1, out + tile, row_bytes);
  if constexpr (Rows > 1) _tile_stored(2, out + 2 * tile, row_bytes);
  if constexpr (Rows > 1 && Columns > 1) _tile_stored(3, out + 3 * tile, row_bytes);
  finish_stores();
}

}  // namespace
}  // namespace troupe::kernels
