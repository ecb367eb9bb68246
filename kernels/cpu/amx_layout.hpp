// How profile amx_bf16 packs weights, and the arguments of its product.
//
// A tile is 16 columns by 32 inputs. Two tiles of neighbouring columns lie together, so that a 32-column panel is
// one stream of memory: body [ceil(n/32)][ceil(k/32)][2][tile]; columns beyond n and inputs beyond k are zero.
//
// BF16 tile (1,024 bytes): 16 rows of 32 BF16; row r holds, for each column c, the inputs 2r and 2r + 1 side by
// side at 2c and 2c + 1, which is what TDPBF16PS wants.
//
// Coded BF16 tile (768 bytes): the same values in 12 bits each. The upper byte of a BF16 (its sign and seven bits of
// exponent) takes few values in a trained weight, so a code of 4 bits stands for it, an index into the weight's table
// of 16 upper bytes; the lower byte stays as it is. 4 groups of 4 rows; a group is a line of 64 pairs of codes, then
// two lines of lower bytes, of the rows 4g and 4g + 1 and of the rows 4g + 2 and 4g + 3; the lower half of each code
// byte belongs to the first of these lines. Within each 16 bytes the first 8 belong to the first row of the two,
// because the decoder's interleaving instructions work within 16-byte lanes. What the table does not know is an
// exception: before a panel's tiles lie, for each of its two tile columns, `exception_slots` words of
// step << 17 | position in the tile << 8 | upper byte, ascending, unused ones with all bits set. Columns beyond n and
// inputs beyond k are some positive number, since zero may be an exception. Before the body lies the table.
//
// E4M3 tile (512 bytes): 8 lines of 64 codes; line q decodes to the BF16 rows 2q and 2q + 1, within 16 bytes as above.
// Codes beyond n and k stand for 1. Before the body lie scales, FP32 [2 ceil(n/32)][ceil(k/128)], one for each tile
// column and 128 inputs, and after them the marks of rare tiles, 64-bit words [2 ceil(n/32)][ceil(k/2048)]: bit
// step % 64 says that the tile has a code which is not a normal number (zero, a subnormal or NaN). All others decode by
// moving their bits.
//
// All of that is the straight order of inputs. In the chained one, which vector_tiles multiplies, input `at` of a step
// stands where chained_place(at) stands in the straight one, in weights and in rows of inputs: of each four inputs
// 0 1 2 3 come 2 0 3 1, pairs of two even and of two odd ones.
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

[[gnu::always_inline]] constexpr inline ptrdiff_t tile_bytes(weight_storage storage) {
  switch (storage) {
    case weight_storage::bf16_coded: return tile_elements * 3 / 2;
    case weight_storage::e4m3: return tile_elements;
    default: return tile_elements * 2;
  }
}

// Of the two rows that a line of 64 one-byte elements decodes to: where element `at` of the line lies in them.
constexpr int position_in_pair(int at) { return at % 16 / 8 * tile_depth + at / 16 * 8 + at % 8; }

// Coded BF16.
inline constexpr int upper_bytes = 16;          // in a weight's table
inline constexpr int coded_group_rows = 4;      // rows of a tile that share a line of codes
inline constexpr int coded_group_bytes = 192;   // that line and two of lower bytes
inline constexpr int coded_steps_max = 0x7fff;  // what an exception can name

// Exceptions that a tile column has room for: one in 256 elements. A weight with more stays BF16.
[[gnu::always_inline]] constexpr inline int exception_slots(int steps) { return (2 * steps + 15) / 16 * 16; }

constexpr uint32_t exception_word(int step, int position, uint8_t upper) {
  return static_cast<uint32_t>(step) << 17 | static_cast<uint32_t>(position) << 8 | upper;
}

// Exceptions of one tile column, taken step by step.
struct exception_cursor {
  const uint32_t *next, *end;

  // Whether this step's tile lacks something.
  [[gnu::always_inline]] inline bool any(int step) const {
    return next != end && *next >> 17 == static_cast<uint32_t>(step);
  }
  // Puts what this step's tile lacks into it.
  [[gnu::always_inline]] inline void mend(int step, uint16_t* tile) {
    for (; any(step); ++next) {
      uint16_t& element = tile[*next >> 8 & (tile_elements - 1)];
      element = static_cast<uint16_t>((*next & 0xff) << 8 | (element & 0xff));
    }
  }
};

// E4M3.
inline constexpr uint8_t padding_code = 0x38;  // 1

constexpr bool is_rare(uint8_t code) { return (code & 0x78U) == 0 || (code & 0x7fU) == 0x7f; }

// Words of marks for a tile column.
[[gnu::always_inline]] constexpr inline int mark_words(int steps) { return (steps + 63) / 64; }

// See above.
constexpr int chained_place(int at) { return at / 4 * 4 + (at % 4 < 2 ? 1 + at % 4 * 2 : at % 4 * 2 - 4); }

// Where input `at` (0 .. 31) of column `column` (0 .. 15) lies in a BF16 tile, in the straight order.
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
  weight_storage storage;  // bf16, bf16_coded or e4m3
  bool chained;            // the order of inputs
  const std::byte* body;
  const float* scales;         // e4m3
  const uint64_t* rare_marks;  // e4m3
  const uint8_t* upper_bytes;  // bf16_coded: [16]
  int n, k;
  const uint16_t* x;  // input tiles, 64-byte aligned
  int m;
  int n_begin, n_end;

  // Where input `at` of a step stands.
  [[gnu::always_inline]] inline int place(int at) const { return chained ? chained_place(at) : at; }
  // Where the first tile of tile column `column` lies; its others follow two tiles apart.
  [[gnu::always_inline]] inline const std::byte* first_tile(int column) const {
    return panel(column / 2) + exception_bytes() + column % 2 * tile_bytes(storage);
  }
  // Of tile column `column`. Requires: storage is e4m3.
  [[gnu::always_inline]] inline const uint64_t* rare_tiles(int column) const {
    return rare_marks + ptrdiff_t{column} * mark_words(tile_steps(k));
  }
  // Requires: storage is bf16_coded.
  [[gnu::always_inline]] inline exception_cursor exceptions(int column) const {
    const int slots = exception_slots(tile_steps(k));
    const uint32_t* first = reinterpret_cast<const uint32_t*>(panel(column / 2)) + column % 2 * slots;
    return {first, first + slots};
  }
  // Bytes of a panel.
  [[gnu::always_inline]] inline ptrdiff_t panel_bytes() const {
    return exception_bytes() + ptrdiff_t{tile_steps(k)} * 2 * tile_bytes(storage);
  }

 private:
  [[gnu::always_inline]] inline const std::byte* panel(int index) const { return body + index * panel_bytes(); }
  [[gnu::always_inline]] inline ptrdiff_t exception_bytes() const {
    return storage == weight_storage::bf16_coded
               ? ptrdiff_t{2} * exception_slots(tile_steps(k)) * static_cast<ptrdiff_t>(sizeof(uint32_t))
               : 0;
  }
};

}  // namespace troupe::kernels
