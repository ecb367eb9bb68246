// Where the tiles of a product's weights come from, step by step, in each form that weights are stored in. For
// amx_bf16's object files alone (see amx_tiles.hpp).
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/amx_decode.hpp"
#include "kernels/cpu/amx_layout.hpp"
#include "kernels/cpu/amx_tiles.hpp"

// So that the header also compiles where the command line does not enable these, as every header must.
#if !defined(__clang__)
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,gfni")
#endif

namespace troupe::kernels {
namespace {

// Steps of a BF16 product after which more than two row tiles take turns.
constexpr int steps_in_block = 4;

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

// Where a panel's BF16 tiles come from, from its first wanted column on. step(i, slot): both tiles of step i, which
// follow those of the slot before, and stay until the slot is used again. at(i): where step i lies in memory, `lines`
// lines.
struct bf16_steps {
  static constexpr int lines = lines_of_step;
  const uint16_t* w;

  bf16_steps(const amx_product& call, const panel& p)
      : w(reinterpret_cast<const uint16_t*>(call.first_tile(p.index * 2 + p.first))) {}
  const uint16_t* step(int i, int) const { return w + ptrdiff_t{i} * 2 * tile_elements; }
  const char* at(int i) const { return reinterpret_cast<const char*>(step(i, 0)); }
};

// They are decoded one step at a time, between the products, which the processor overlaps.
template <class T>
struct coded_steps {
  static constexpr ptrdiff_t tile = tile_bytes(weight_storage::bf16_coded);
  static constexpr int lines = 2 * tile / line_bytes;
  const std::byte* codes;
  const __m512i upper;
  const int columns;
  exception_cursor exceptions[2];
  alignas(64) uint16_t decoded[steps_in_block][2 * tile_elements];

  coded_steps(const amx_product& call, const panel& p)
      : codes(call.first_tile(p.index * 2 + p.first)),
        upper(load_upper_bytes(call.upper_bytes)),
        columns(p.columns),
        exceptions{call.exceptions(p.index * 2 + p.first), call.exceptions(p.index * 2 + p.first + p.columns - 1)} {}
  [[gnu::always_inline]] inline const uint16_t* step(int i, int slot, const fetch_distance& ahead = {0, 16 * tile}) {
    const std::byte* from = codes + ptrdiff_t{i} * 2 * tile;
    for (int c = 0; c < columns; ++c) {
      uint16_t* to = decoded[slot] + ptrdiff_t{c} * tile_elements;
      decode_tile<T::fetch_level>(upper, from + c * tile, to, ahead);
      exceptions[c].mend(i, to);
    }
    return decoded[slot];
  }
  const char* at(int i) const { return reinterpret_cast<const char*>(codes + ptrdiff_t{i} * 2 * tile); }
};

// As coded_steps; slots are the steps of a scale block.
template <class T>
struct e4m3_steps {
  static constexpr ptrdiff_t tile = tile_bytes(weight_storage::e4m3);
  const e4m3_decoder decoder{};
  const std::byte* codes;
  const float* scales[2];
  const uint64_t* rare[2];
  const int columns;
  alignas(64) uint16_t decoded[steps_in_scale_block][2 * tile_elements];

  e4m3_steps(const amx_product& call, const panel& p)
      : codes(call.first_tile(p.index * 2 + p.first)), columns(p.columns) {
    const int blocks = (call.k + scale_block - 1) / scale_block, first = p.index * 2 + p.first;
    scales[0] = call.scales + ptrdiff_t{first} * blocks;
    scales[1] = columns == 2 ? scales[0] + blocks : scales[0];
    rare[0] = call.rare_tiles(first);
    rare[1] = call.rare_tiles(first + columns - 1);
  }
  [[gnu::always_inline]] inline const uint16_t* step(int i, const fetch_distance& ahead) {
    uint16_t* to = decoded[i % steps_in_scale_block];
    for (int c = 0; c < columns; ++c) {
      const std::byte* from = codes + (ptrdiff_t{i} * 2 + c) * tile;
      if (is_marked(rare[c], i))
        decode_rare_tile<T::fetch_level>(from, to + ptrdiff_t{c} * tile_elements, ahead);
      else
        decode_e4m3_tile<T::fetch_level>(decoder, from, to + ptrdiff_t{c} * tile_elements, ahead);
    }
    return to;
  }
};

}  // namespace
}  // namespace troupe::kernels

#if !defined(__clang__)
#pragma GCC pop_options
#endif
