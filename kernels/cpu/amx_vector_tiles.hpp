// Tile registers for a CPU without AMX that multiplies pairs of BF16 (AVX512_BF16): the bits of the hardware (see
// amx_tiles.hpp). For amx_avx512.cpp alone.
//
// TDPBF16PS sums, for each element of a tile, its 16 even inputs and its 16 odd ones in two chains of fused
// multiply-adds that start from zero, adds the two, and adds that to the accumulator; denormals count as zero
// everywhere (amx_emulation.cpp). VDPBF16PS makes two links of one chain: the multiply-add of the upper halves of its
// operands, then that of the lower halves; denormals count as zero there too. Hence the chained order of inputs.
#pragma once

#include <immintrin.h>

#include <type_traits>

#include "kernels/cpu/amx_few_rows.hpp"

// So that the header also compiles where the command line does not enable these, as every header must.
#if !defined(__clang__)
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
#endif

namespace troupe::kernels {
namespace {

constexpr int rows_in_registers = 8;  // their chains fill half of the registers

// sums [Rows][16] += x w for one step: x [Rows][32], w.pair(q) the rows 2q and 2q + 1 of a tile. Denormals must count
// as zero. Requires: Rows <= rows_in_registers.
template <int Rows, class TileRows>
[[gnu::always_inline]] inline void add_chained(const uint16_t* x, const TileRows& w, float* sums) {
  const auto pair_at = [](const uint16_t* at) {
    int pair;
    __builtin_memcpy(&pair, at, sizeof pair);
    return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
  };
  __m512 even[Rows], odd[Rows];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) even[r] = odd[r] = _mm512_setzero_ps();
#pragma GCC unroll 8
  for (int q = 0; q < tile_rows / 2; ++q) {
    const tile_row_pair pair = w.pair(q);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      even[r] = _mm512_dpbf16_ps(even[r], pair_at(x + r * tile_depth + q * 4), reinterpret_cast<__m512bh>(pair.first));
      odd[r] =
          _mm512_dpbf16_ps(odd[r], pair_at(x + r * tile_depth + q * 4 + 2), reinterpret_cast<__m512bh>(pair.second));
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    float* to = sums + r * tile_columns;
    _mm512_store_ps(to, _mm512_add_ps(_mm512_load_ps(to), _mm512_add_ps(even[r], odd[r])));
  }
}

// The same of a whole tile; a function of its own, because compilers move arithmetic over a change of the mode.
template <int Rows>
[[gnu::noinline]] void add_tile(const uint16_t* x, const uint16_t* w, float* sums) {
  add_chained<Rows>(x, decoded_rows{w}, sums);
}

// The same for `rows` <= Rows.
template <int Rows>
[[gnu::always_inline]] inline void add_remainder(int rows, const uint16_t* x, const uint16_t* w, float* sums) {
  if (rows == Rows)
    add_tile<Rows>(x, w, sums);
  else if constexpr (Rows > 1)
    add_remainder<Rows - 1>(rows, x, w, sums);
}

struct vector_tiles {
  static constexpr bool chained = true;
  static constexpr int fetch_level = 1, few_rows = 16, few_steps_ahead = 2, rows_to_decode_in_registers = 4;
  using mode = denormals_are_zero;
  template <int Rows>
  using e4m3_decoder_of = std::conditional_t<(Rows >= 4), e4m3_shift_decoder, e4m3_decoder>;

  template <int Rows>
  struct few_inputs {
    const uint16_t* x;
    explicit few_inputs(const uint16_t* rows) : x(rows) {}

    template <class TileRows>
    [[gnu::always_inline]] inline void add(const TileRows& w, float* sums) const {
      if constexpr (Rows <= rows_in_registers) {
        add_chained<Rows>(x, w, sums);
      } else {  // to decode them twice takes less time than to store them
        add_chained<rows_in_registers>(x, w, sums);
        add_chained<Rows - rows_in_registers>(x + rows_in_registers * tile_depth, w,
                                              sums + rows_in_registers * tile_columns);
      }
    }
  };

  static void begin() {}

  // Sums grow where they are to be stored.
  template <int A>
  [[gnu::always_inline]] static void zero(float* sums) {
    for (int i = 0; i < tile_rows * tile_columns; i += lane_count) _mm512_store_ps(sums + i, _mm512_setzero_ps());
    resume<A>(sums);
  }
  template <int A>
  [[gnu::always_inline]] static void resume(float* sums) {
    file.sums[A] = sums;
  }
  template <int X>
  [[gnu::always_inline]] static void input(const uint16_t* at, int rows) {
    file.inputs[X - first_input] = at;
    file.rows[X - first_input] = rows;
  }
  template <int W>
  [[gnu::always_inline]] static void weights(const uint16_t* at) {
    file.weights[W - first_weights] = at;
  }
  template <int A, int X, int W>
  [[gnu::always_inline]] static void dot() {
    const uint16_t *x = file.inputs[X - first_input], *w = file.weights[W - first_weights];
    float* sums = file.sums[A];
    int rows = file.rows[X - first_input];
    for (; rows >= rows_in_registers; rows -= rows_in_registers) {
      add_tile<rows_in_registers>(x, w, sums);
      x += rows_in_registers * tile_depth;
      sums += rows_in_registers * tile_columns;
    }
    if (rows > 0) add_remainder<rows_in_registers - 1>(rows, x, w, sums);
  }
  template <int A>
  [[gnu::always_inline]] static void store(const float*) {}

 private:
  static constexpr int first_input = 4, first_weights = 5;

  struct register_file {
    float* sums[4];
    const uint16_t* inputs[2];
    int rows[2];
    const uint16_t* weights[3];
  };
  static thread_local register_file file;
};
thread_local vector_tiles::register_file vector_tiles::file;

}  // namespace
}  // namespace troupe::kernels

#if !defined(__clang__)
#pragma GCC pop_options
#endif
