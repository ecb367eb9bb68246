// How profile amx_bf16 packs weights, and the arguments of its product.
//
// A tile is 16 columns by 32 inputs. Two tiles of neighbouring columns lie together, so that a 32-column panel is
// one stream of memory: body [ceil(n/32)][ceil(k/32)][2][tile]; columns beyond n and inputs beyond k are zero.
//
// BF16 tile (1,024 bytes): 16 rows of 32 BF16; row r holds, for each column c, the inputs 2r and 2r + 1 side by
// side at 2c and 2c + 1, which is what TDPBF16PS wants.
//
// E4M3 tile (512 bytes): 8 lines of 64 codes; line q decodes to the BF16 rows 2q and 2q + 1. Within each 16
// bytes the first 8 codes belong to the first row and the last 8 to the second, because the decoder's
// interleaving instructions work within 16-byte lanes. Scales: FP32 [2 ceil(n/32)][ceil(k/128)], one for each
// tile column and 128 inputs, before the body.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/lanes.hpp"

namespace troupe::kernels {

inline constexpr int tile_rows = 16;
inline constexpr int tile_columns = 16;
inline constexpr int tile_depth = 32;
inline constexpr int tile_elements = tile_columns * tile_depth;
inline constexpr int steps_in_scale_block = scale_block / tile_depth;

[[gnu::always_inline]] constexpr inline int tile_steps(int k) { return (k + tile_depth - 1) / tile_depth; }

// Where input `at` (0 .. 31) of column `column` (0 .. 15) lies in a BF16 tile.
constexpr int bf16_position(int column, int at) { return at / 2 * tile_depth + 2 * column + at % 2; }

// Where the same lies in an E4M3 tile.
constexpr int e4m3_position(int column, int at) {
  const int row = at / 2;
  const int element = 2 * column + at % 2;
  return row / 2 * 64 + element / 8 * 16 + row % 2 * 8 + element % 8;
}

// Rows as inputs: tiles [ceil(m/16)][ceil(k/32)][16][32] BF16, zero beyond k. Where row `row` begins, in elements; its
// next 32 values lie a tile further.
[[gnu::always_inline]] constexpr inline ptrdiff_t input_row_position(int row, int k) {
  return (ptrdiff_t{row / tile_rows} * tile_steps(k) * tile_rows + row % tile_rows) * tile_depth;
}

// y = x W^T for columns [n_begin, n_end).
struct amx_product {
  weight_storage storage;  // bf16 or e4m3
  const std::byte* body;
  const float* scales;
  int n, k;
  const uint16_t* x;  // input tiles, 64-byte aligned
  int m;
  int n_begin, n_end;
};

}  // namespace troupe::kernels
