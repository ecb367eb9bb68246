// AMX tile registers, and the inner loops of products over any tile registers. For the object files of profile
// amx_bf16 alone; everything is in an unnamed namespace so that no other file links code made for them.
//
// `T` is a set of 8 tile registers: hardware_tiles (amx_hardware_tiles.hpp), or vector_tiles (amx_vector_tiles.hpp)
// where the CPU has none. Each has these static members:
//   chained              the order in which its inputs and weights lie (amx_layout.hpp)
//   begin()              before anything else of this object on this thread, once; cheap when repeated
//   zero<a>(sums)        accumulator a becomes zero; store<a>(sums) follows
//   resume<a>(sums)      accumulator a takes the sums [16][16] that store<a> left there
//   input<x>(at, rows)   register x takes rows of 32 BF16 that follow each other; those beyond `rows` may be left out
//   weights<w>(at)       register w takes 16 pairs of inputs of 16 columns, [16][16][2] BF16
//   dot<a, x, w>()       TDPBF16PS
//   store<a>(sums)       the accumulator, [16][16] FP32
//   mode                 while one lives, dot may be used
//   fetch_level          into which cache level what comes soon is fetched (fetch_distance, amx_decode.hpp)
//   few_rows, few_steps_ahead, few_inputs<rows>   (amx_few_rows.hpp) up to how many rows are faster without tiles; how
//                        many steps before they are multiplied weights are fetched then; a step of such rows, made of
//                        rows of 32 inputs: add(w, sums) adds to sums [rows][16] the products with w.pair(q), the rows
//                        2q and 2q + 1 of a tile
//   rows_to_decode_in_registers   from how many of those rows on coded BF16 is decoded there; beyond few_rows: never
//   e4m3_decoder_of<rows>   what decodes FP8 for such rows (amx_decode.hpp)
// What zero, resume, input and weights are given stays where it is until store.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/amx_layout.hpp"

namespace troupe::kernels {
namespace {

// The tile intrinsics do not tell the compiler that they read memory; this keeps earlier stores before them.
[[gnu::always_inline]] inline void finish_stores() { asm volatile("" ::: "memory"); }

constexpr ptrdiff_t tile_sums = tile_rows * tile_columns;

// Accumulators are 0-3 (row tile r, column tile c in 2r + c), 4-5 hold x, 6-7 weights.

// Sums [Rows][2 column tiles][16][16] become zero; store_tiles to the same follows.
template <class T, int Rows, int Columns>
[[gnu::always_inline]] inline void zero_tiles(float* sums) {
  T::template zero<0>(sums);
  if constexpr (Columns > 1) T::template zero<1>(sums + tile_sums);
  if constexpr (Rows > 1) T::template zero<2>(sums + 2 * tile_sums);
  if constexpr (Rows > 1 && Columns > 1) T::template zero<3>(sums + 3 * tile_sums);
}

// Weights to fetch into the second-level cache while others are multiplied: `lines` lines a step from `at`.
struct prefetch_plan {
  const char* at = nullptr;
  int lines = 0;
};

inline constexpr int line_bytes = 64;
inline constexpr int lines_of_step = 2 * tile_elements * 2 / line_bytes;  // of both column tiles

// Rows of an input that a product is of: row tiles `stride` elements apart, each [steps][16][32] BF16, of which the
// last one has `last` rows.
struct input_rows {
  const uint16_t* at;
  ptrdiff_t stride;
  int last;

  input_rows from_step(int step) const { return {at + ptrdiff_t{step} * tile_elements, stride, last}; }
};

// w: [steps][2][tile] BF16, from the first column tile wanted. Adds to the accumulators. Requires: a T::mode lives.
template <class T, int Rows, int Columns>
[[gnu::always_inline]] inline void add_products(const input_rows& rows, const uint16_t* w, int steps,
                                                prefetch_plan ahead) {
  const uint16_t* x = rows.at;
  finish_stores();
  for (int step = 0; step < steps; ++step, x += tile_elements, w += 2 * tile_elements) {
    for (int line = 0; line < ahead.lines; ++line, ahead.at += line_bytes) __builtin_prefetch(ahead.at, 0, 1);
    T::template input<4>(x, Rows > 1 ? tile_rows : rows.last);
    T::template weights<6>(w);
    T::template dot<0, 4, 6>();
    if constexpr (Columns > 1) {
      T::template weights<7>(w + tile_elements);
      T::template dot<1, 4, 7>();
    }
    if constexpr (Rows > 1) {
      T::template input<5>(x + rows.stride, rows.last);
      T::template dot<2, 5, 6>();
      if constexpr (Columns > 1) T::template dot<3, 5, 7>();
    }
  }
}

// Continues the sums that store_tiles left at `sums`.
template <class T, int Rows, int Columns>
[[gnu::always_inline]] inline void resume_tiles(float* sums) {
  finish_stores();
  T::template resume<0>(sums);
  if constexpr (Columns > 1) T::template resume<1>(sums + tile_sums);
  if constexpr (Rows > 1) T::template resume<2>(sums + 2 * tile_sums);
  if constexpr (Rows > 1 && Columns > 1) T::template resume<3>(sums + 3 * tile_sums);
}

// Adds the products of one row tile over two panels: accumulators 0 and 1 of the first, 2 and 3 of the second. Two
// streams of weights pass, because the processor fetches them faster than one. Fetch: fetches what lies two steps
// further. Requires: a T::mode lives.
template <class T, bool Fetch>
[[gnu::always_inline]] inline void add_two_panels(const input_rows& rows, const uint16_t* first, const uint16_t* second,
                                                  int steps) {
  constexpr ptrdiff_t ahead = 2 * 2 * tile_elements;  // two steps
  const uint16_t* x = rows.at;
  finish_stores();
  for (int step = 0; step < steps;
       ++step, x += tile_elements, first += 2 * tile_elements, second += 2 * tile_elements) {
    for (int line = 0; Fetch && line < lines_of_step; ++line) {
      __builtin_prefetch(first + ahead + line * line_bytes / 2, 0, 1);
      __builtin_prefetch(second + ahead + line * line_bytes / 2, 0, 1);
    }
    T::template input<4>(x, rows.last);
    T::template weights<5>(first);
    T::template dot<0, 4, 5>();
    T::template weights<6>(first + tile_elements);
    T::template dot<1, 4, 6>();
    T::template weights<7>(second);
    T::template dot<2, 4, 7>();
    T::template weights<5>(second + tile_elements);
    T::template dot<3, 4, 5>();
  }
}

// Stores the accumulators to `out` [Rows][2 column tiles][16][16] FP32.
template <class T, int Rows, int Columns>
[[gnu::always_inline]] inline void store_tiles(float* out) {
  T::template store<0>(out);
  if constexpr (Columns > 1) T::template store<1>(out + tile_sums);
  if constexpr (Rows > 1) T::template store<2>(out + 2 * tile_sums);
  if constexpr (Rows > 1 && Columns > 1) T::template store<3>(out + 3 * tile_sums);
  finish_stores();
}

}  // namespace
}  // namespace troupe::kernels
