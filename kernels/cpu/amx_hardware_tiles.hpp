// The tile registers that the CPU has (see amx_tiles.hpp). For amx_hardware.cpp alone.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/amx_few_rows.hpp"

// So that the header also compiles where the command line does not enable these, as every header must.
#if !defined(__clang__)
#pragma GCC push_options
#pragma GCC target("avx512f")
#endif

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

// TDPBF16PS, for one element: its 16 even and its 16 odd inputs are summed in two chains of fused multiply-adds that
// start from zero, the two are added, and that is added to the accumulator; denormals count as zero everywhere
// (amx_emulation.cpp).
struct hardware_tiles {
  // The multiply-adds that a tile instruction is made of.
  template <int Rows>
  class few_inputs {
   public:
    explicit few_inputs(const uint16_t* x) {
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        const __m512i pairs = _mm512_load_si512(x + r * tile_depth);
        _mm512_store_si512(values_[r], _mm512_slli_epi32(pairs, 16));
        _mm512_store_si512(values_[r] + tile_depth / 2, _mm512_and_si512(pairs, upper_half()));
      }
      finish_stores();  // so that multiply-adds broadcast from memory
    }

    template <class TileRows>
    [[gnu::always_inline]] inline void add(const TileRows& w, float* sums) const {
      __m512 even[Rows], odd[Rows];
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) even[r] = odd[r] = _mm512_setzero_ps();
#pragma GCC unroll 8
      for (int q = 0; q < tile_rows / 2; ++q) {
        const tile_row_pair pair = w.pair(q);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          const __m512i row = half == 0 ? pair.first : pair.second;
          const __m512 w_even = _mm512_castsi512_ps(_mm512_slli_epi32(row, 16));
          const __m512 w_odd = _mm512_castsi512_ps(_mm512_and_si512(row, upper_half()));
#pragma GCC unroll 4
          for (int r = 0; r < Rows; ++r) {
            const int i = 2 * q + half;
            even[r] = _mm512_fmadd_ps(_mm512_set1_ps(values_[r][i]), w_even, even[r]);
            odd[r] = _mm512_fmadd_ps(_mm512_set1_ps(values_[r][tile_depth / 2 + i]), w_odd, odd[r]);
          }
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        float* to = sums + r * tile_columns;
        _mm512_store_ps(to, _mm512_add_ps(_mm512_load_ps(to), _mm512_add_ps(even[r], odd[r])));
      }
    }

   private:
    static __m512i upper_half() { return _mm512_set1_epi32(static_cast<int>(0xffff0000U)); }

    alignas(64) float values_[Rows][tile_depth];  // the even inputs, then the odd ones
  };

  static constexpr bool chained = false;
  static constexpr int fetch_level = 3, few_rows = 4, few_steps_ahead = 1, rows_to_decode_in_registers = 5;
  template <int>
  using e4m3_decoder_of = e4m3_decoder;
  struct mode {
    mode() {}  // not trivial, so that one which is not read is no unused variable
  };

  static void begin() {
    thread_local bool configured = false;
    if (configured) return;
    const tile_configuration configuration;
    // GCC 12 drops the stores to the structure if the intrinsic _tile_loadconfig is used.
    asm volatile("ldtilecfg %0" ::"m"(configuration) : "memory");
    configured = true;
  }

  // Not the compiler's intrinsics: GCC's take the register's number as text.
  template <int A>
  [[gnu::always_inline]] static void zero(const float*) {
    asm volatile("tilezero %%tmm%c0" ::"i"(A));
  }
  template <int A>
  [[gnu::always_inline]] static void resume(const float* sums) {
    load<A>(sums);
  }
  template <int X>
  [[gnu::always_inline]] static void input(const uint16_t* at, int) {
    load<X>(at);
  }
  template <int W>
  [[gnu::always_inline]] static void weights(const uint16_t* at) {
    load<W>(at);
  }
  template <int A, int X, int W>
  [[gnu::always_inline]] static void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(A), "i"(X), "i"(W));
  }
  template <int A>
  [[gnu::always_inline]] static void store(float* sums) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(sums), "r"(row_bytes), "i"(A) : "memory");
  }

 private:
  static constexpr ptrdiff_t row_bytes = 64;

  template <int R>
  [[gnu::always_inline]] static void load(const void* at) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(at), "r"(row_bytes), "i"(R));
  }
};

}  // namespace
}  // namespace troupe::kernels

#if !defined(__clang__)
#pragma GCC pop_options
#endif
