// Products of few rows by the multiply-adds that a tile instruction is made of, in vector registers: the same bits as
// tiles, but several streams of weights pass at the speed of memory, for which tiles would wait. For the AMX object
// file alone (see amx_tiles.hpp).
//
// TDPBF16PS, for one element: its 16 even and its 16 odd inputs are summed in two chains of fused multiply-adds that
// start from zero, the two are added, and that is added to the accumulator; denormals count as zero everywhere
// (amx_emulation.cpp).
#pragma once

#include <cstddef>

#include "kernels/cpu/amx_decode.hpp"
#include "kernels/cpu/amx_tiles.hpp"

namespace troupe::kernels {
namespace {

// Up to so many rows, vector registers keep pace with memory.
constexpr int few_rows = 4;
// Column tiles that pass together: four panels, because the processor fetches several streams faster than one.
constexpr int few_tiles_together = 8;

// While it lives, denormal inputs and results of this thread count as zero.
class denormals_are_zero {
 public:
  denormals_are_zero() : before_(_mm_getcsr()) { _mm_setcsr(before_ | daz_and_ftz); }
  ~denormals_are_zero() { _mm_setcsr(before_); }
  denormals_are_zero(const denormals_are_zero&) = delete;
  denormals_are_zero& operator=(const denormals_are_zero&) = delete;

 private:
  static constexpr unsigned daz_and_ftz = 0x8040;
  unsigned before_;
};

// Rows 2q and 2q + 1 of a column tile, as BF16: 16 columns of two inputs each.
struct tile_row_pair {
  __m512i first, second;
};

[[gnu::always_inline]] inline tile_row_pair load_pair(const void* tile, int q) {
  const auto* at = static_cast<const std::byte*>(tile) + q * 128;
  return {_mm512_load_si512(at), _mm512_load_si512(at + 64)};
}

// Rows of a tile that lies decoded somewhere.
struct decoded_rows {
  const uint16_t* tile;
  [[gnu::always_inline]] inline tile_row_pair pair(int q) const { return load_pair(tile, q); }
};

// Where column tiles come from. open(t, step, at, next, use): column tile t's bytes at that step are at `at`, and those
// that it is to fetch at `next`; calls use(rows), where rows.pair(q) gives the tile's rows.
struct bf16_source {
  static constexpr weight_storage storage = weight_storage::bf16;
  struct straight_rows {
    const std::byte *tile, *ahead;
    [[gnu::always_inline]] inline tile_row_pair pair(int q) const {
      __builtin_prefetch(ahead + q * 128);
      __builtin_prefetch(ahead + q * 128 + 64);
      return load_pair(tile, q);
    }
  };

  void add(const amx_product&, int, int) {}
  template <class Use>
  [[gnu::always_inline]] inline void open(int, int, const std::byte* at, const std::byte* next, Use use) {
    use(straight_rows{at, next});
  }
};

struct e4m3_source {
  static constexpr weight_storage storage = weight_storage::e4m3;
  struct straight_rows {
    const std::byte *tile, *ahead;
    const e4m3_decoder& decoder;
    [[gnu::always_inline]] inline tile_row_pair pair(int q) const {
      __builtin_prefetch(ahead + q * 64);
      tile_row_pair rows;
      decoder.decode(_mm512_load_si512(tile + q * 64), rows.first, rows.second);
      return rows;
    }
  };
  const e4m3_decoder decoder;
  const uint64_t* rare[few_tiles_together];
  alignas(64) uint16_t decoded[tile_elements];

  void add(const amx_product& call, int t, int tile) {
    rare[t] = call.rare_tiles(tile);
    __builtin_prefetch(rare[t]);
  }
  template <class Use>
  [[gnu::always_inline]] inline void open(int t, int step, const std::byte* at, const std::byte* next, Use use) {
    if (is_marked(rare[t], step)) {
      decode_rare_tile(at, decoded, {next - at, 0});
      use(decoded_rows{decoded});
    } else {
      use(straight_rows{at, next, decoder});
    }
  }
};

// Decodes a whole tile first: so the next one is fetched and decoded while this one's sums wait for each other.
struct coded_source {
  static constexpr weight_storage storage = weight_storage::bf16_coded;
  const uint8_t* upper[few_tiles_together];
  exception_cursor exceptions[few_tiles_together];
  alignas(64) uint16_t decoded[tile_elements];

  void add(const amx_product& call, int t, int tile) {
    upper[t] = call.upper_bytes;
    exceptions[t] = call.exceptions(tile);
    __builtin_prefetch(exceptions[t].next);
  }
  template <class Use>
  [[gnu::always_inline]] inline void open(int t, int step, const std::byte* at, const std::byte* next, Use use) {
    decode_tile(load_upper_bytes(upper[t]), at, decoded, {next - at, 0});
    exceptions[t].mend(step, decoded);
    finish_stores();
    use(decoded_rows{decoded});
  }
};

// sums [Rows][16] += x W^T over one step of a column tile. x [Rows]: the even inputs, then the odd ones.
template <int Rows, class TileRows>
[[gnu::always_inline]] inline void add_step(const float (*x)[tile_depth], const TileRows& w,
                                            float (*sums)[tile_columns]) {
  const __m512i upper_half = _mm512_set1_epi32(static_cast<int>(0xffff0000U));
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
      const __m512 w_odd = _mm512_castsi512_ps(_mm512_and_si512(row, upper_half));
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        const int i = 2 * q + half;
        even[r] = _mm512_fmadd_ps(_mm512_set1_ps(x[r][i]), w_even, even[r]);
        odd[r] = _mm512_fmadd_ps(_mm512_set1_ps(x[r][tile_depth / 2 + i]), w_odd, odd[r]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r)
    _mm512_store_ps(sums[r], _mm512_add_ps(_mm512_load_ps(sums[r]), _mm512_add_ps(even[r], odd[r])));
}

// Sums of some column tiles and few rows.
struct few_sums {
  alignas(64) float tile[few_tiles_together][few_rows][tile_columns];
};

// sums = x W^T over `steps` steps from `first_step` on, where w[t] is column tile t and x begins. Each step fetches
// the next one's tiles, the last one those that lie `after` bytes from w[t]. Denormals must count as zero; a function
// of its own, because compilers move arithmetic over a change of that mode.
template <int Rows, class Source>
[[gnu::noinline]] void stream_steps(const uint16_t* x, Source& from, const std::byte* const* w, int tiles,
                                    int first_step, int steps, ptrdiff_t after, few_sums& sums) {
  constexpr ptrdiff_t step_bytes = 2 * tile_bytes(Source::storage);
  const __m512i upper_half = _mm512_set1_epi32(static_cast<int>(0xffff0000U));
  for (int t = 0; t < tiles; ++t)
    for (int r = 0; r < Rows; ++r) _mm512_store_ps(sums.tile[t][r], _mm512_setzero_ps());
  for (int step = 0; step < steps; ++step, x += tile_elements) {
    alignas(64) float values[Rows][tile_depth];
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const __m512i pairs = _mm512_load_si512(x + r * tile_depth);
      _mm512_store_si512(values[r], _mm512_slli_epi32(pairs, 16));
      _mm512_store_si512(values[r] + tile_depth / 2, _mm512_and_si512(pairs, upper_half));
    }
    finish_stores();  // so that multiply-adds broadcast from memory
    for (int t = 0; t < tiles; ++t) {
      const std::byte* at = w[t] + ptrdiff_t{step} * step_bytes;
      from.open(
          t, first_step + step, at,
          step + 1 < steps ? at + step_bytes : w[t] + after, [&](const auto& rows) __attribute__((always_inline)) {
            add_step<Rows>(values, rows, sums.tile[t]);
          });
    }
  }
}

template <class Source>
void stream_steps(int rows, const uint16_t* x, Source& from, const std::byte* const* w, int tiles, int first_step,
                  int steps, ptrdiff_t after, few_sums& sums) {
  switch (rows) {
    case 1: return stream_steps<1>(x, from, w, tiles, first_step, steps, after, sums);
    case 2: return stream_steps<2>(x, from, w, tiles, first_step, steps, after, sums);
    case 3: return stream_steps<3>(x, from, w, tiles, first_step, steps, after, sums);
    default: return stream_steps<few_rows>(x, from, w, tiles, first_step, steps, after, sums);
  }
}

// Column tiles, perhaps of several weights of one shape and storage, that multiply one input of few rows.
template <class Source>
class few_tiles {
 public:
  void add(const amx_product& call, int tile) {
    w_[count_] = call.first_tile(tile);
    if constexpr (scaled) {
      scales_[count_] = call.scales + ptrdiff_t{tile} * scale_blocks(call.k);
      __builtin_prefetch(scales_[count_]);
    }
    from_.add(call, count_, tile);
    ++count_;
  }

  // The sums of the tiles added, in their order. `call` gives the input; the tiles that are to be multiplied next lie
  // `panels` panels further.
  void multiply(const amx_product& call, int panels, few_sums& sums) {
    const ptrdiff_t after = panels * call.panel_bytes();
    if constexpr (scaled) {
      multiply_scaled(call, after, sums);
    } else {
      const denormals_are_zero mode;
      stream_steps(call.m, call.x, from_, w_, count_, 0, tile_steps(call.k), after, sums);
    }
  }

 private:
  static constexpr bool scaled = Source::storage == weight_storage::e4m3;
  static int scale_blocks(int k) { return (k + scale_block - 1) / scale_block; }

  // Some blocks at a time, because scales are applied without that mode, and to change it takes a while.
  void multiply_scaled(const amx_product& call, ptrdiff_t after, few_sums& sums) {
    constexpr int blocks_together = 4;
    few_sums partial[blocks_together];
    const int steps = tile_steps(call.k), blocks = scale_blocks(call.k);
    for (int t = 0; t < count_; ++t)
      for (int r = 0; r < call.m; ++r) _mm512_store_ps(sums.tile[t][r], _mm512_setzero_ps());
    for (int first = 0; first < blocks; first += blocks_together) {
      const int count = blocks - first < blocks_together ? blocks - first : blocks_together;
      {
        const denormals_are_zero mode;
        for (int i = 0; i < count; ++i) {
          const int step = (first + i) * steps_in_scale_block;
          const int steps_of_block = steps - step < steps_in_scale_block ? steps - step : steps_in_scale_block;
          const ptrdiff_t bytes = ptrdiff_t{steps_of_block} * 2 * tile_bytes(Source::storage);
          after -= bytes;
          stream_steps(call.m, call.x + ptrdiff_t{step} * tile_elements, from_, w_, count_, step, steps_of_block,
                       first + i + 1 < blocks ? bytes : bytes + after, partial[i]);
          for (int t = 0; t < count_; ++t) w_[t] += bytes;
        }
      }
      add_scaled(call.m, first, count, partial, sums);
    }
  }

  [[gnu::noinline]] void add_scaled(int rows, int first_block, int count, const few_sums* partial,
                                    few_sums& sums) const {
    for (int i = 0; i < count; ++i)
      for (int t = 0; t < count_; ++t) {
        const __m512 scale = _mm512_set1_ps(scales_[t][first_block + i]);
        for (int r = 0; r < rows; ++r)
          _mm512_store_ps(sums.tile[t][r], _mm512_fmadd_ps(scale, _mm512_load_ps(partial[i].tile[t][r]),
                                                           _mm512_load_ps(sums.tile[t][r])));
      }
  }

  Source from_;
  const std::byte* w_[few_tiles_together];
  const float* scales_[few_tiles_together];
  int count_ = 0;
};

}  // namespace
}  // namespace troupe::kernels
