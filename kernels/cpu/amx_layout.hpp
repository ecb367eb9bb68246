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

struct amx_product {
  weight_storage storage;  // bf16 or e4m3
  const std::byte* body;
  const float* scales;
  int n, k;
  const float* x;  // [m, k], row stride ldx
  int64_t ldx;
  float* y;  // [m, n], row stride ldy
  int64_t ldy;
  int m;
  int n_begin, n_end;
  std::byte* scratch;  // amx_scratch_bytes(m, k), 64-byte aligned
};

}  // namespace troupe::kernels
