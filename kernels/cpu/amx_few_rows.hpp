// Products of few rows without tiles: the same bits in vector registers, and several streams of weights pass at the
// speed of memory, for which tiles would wait. For the object files of profile amx_bf16 alone (see amx_tiles.hpp).
#pragma once

#include <cstddef>

#include "kernels/cpu/amx_decode.hpp"
#include "kernels/cpu/amx_tiles.hpp"

namespace troupe::kernels {
namespace {

// Rows that may pass so, at most; T::few_rows says up to how many are faster so than in tiles.
constexpr int few_rows_max = 16;
// Column tiles that pass together: four panels, because the processor fetches several streams faster than one.
constexpr int few_tiles_together = 8;

// While it lives, denormal inputs and results of this thread count as zero.
class denormals_are_zero {
 public:
  denormals_are_zero() : before_(_mm_getcsr()) { set(before_ | daz_and_ftz); }
  ~denormals_are_zero() { set(before_); }
  denormals_are_zero(const denormals_are_zero&) = delete;
  denormals_are_zero& operator=(const denormals_are_zero&) = delete;

 private:
  static constexpr unsigned daz_and_ftz = 0x8040;

  // Arithmetic whose operands or results lie in memory stays on its side.
  static void set(unsigned mode) {
    finish_stores();
    _mm_setcsr(mode);
    finish_stores();
  }

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

// Where column tiles of a product of `Rows` rows over `T` come from. open<Rows>(t, step, at, next, use): column tile
// t's bytes at that step are at `at`, and those that it is to fetch at `next`; calls use(rows), where rows.pair(q)
// gives the tile's rows.
template <class T>
struct bf16_source {
  static constexpr weight_storage storage = weight_storage::bf16;
  struct straight_rows {
    const std::byte *tile, *ahead;
    [[gnu::always_inline]] inline tile_row_pair pair(int q) const {
      __builtin_prefetch(ahead + q * 128, 0, T::fetch_level);
      __builtin_prefetch(ahead + q * 128 + 64, 0, T::fetch_level);
      return load_pair(tile, q);
    }
  };

  void add(const amx_product&, int, int) {}
  template <int Rows, class Use>
  [[gnu::always_inline]] inline void open(int, int, const std::byte* at, const std::byte* next, Use use) {
    use(straight_rows{at, next});
  }
};

template <class T>
struct e4m3_source {
  static constexpr weight_storage storage = weight_storage::e4m3;
  template <class Decoder>
  struct straight_rows {
    const std::byte *tile, *ahead;
    Decoder decoder;
    [[gnu::always_inline]] inline tile_row_pair pair(int q) const {
      __builtin_prefetch(ahead + q * 64, 0, T::fetch_level);
      tile_row_pair rows;
      decoder.decode(_mm512_load_si512(tile + q * 64), rows.first, rows.second);
      return rows;
    }
  };
  const uint64_t* rare[few_tiles_together];
  alignas(64) uint16_t decoded[tile_elements];

  void add(const amx_product& call, int t, int tile) {
    rare[t] = call.rare_tiles(tile);
    __builtin_prefetch(rare[t]);
  }
  template <int Rows, class Use>
  [[gnu::always_inline]] inline void open(int t, int step, const std::byte* at, const std::byte* next, Use use) {
    if (is_marked(rare[t], step)) {
      decode_rare_tile<T::fetch_level>(at, decoded, {next - at, 0});
      use(decoded_rows{decoded});
    } else {
      use(straight_rows<typename T::template e4m3_decoder_of<Rows>>{at, next, {}});
    }
  }
};

// Few rows wait for memory, and for their own sums: a whole tile is decoded first, so that a later one is fetched and
// decoded meanwhile. For more rows tiles are decoded in registers.
template <class T>
struct coded_source {
  static constexpr weight_storage storage = weight_storage::bf16_coded;
  struct straight_rows {
    const std::byte *tile, *ahead;
    __m512i upper;
    [[gnu::always_inline]] inline tile_row_pair pair(int q) const {
      fetch_coded_rows<T::fetch_level>(ahead, q);
      tile_row_pair rows;
      decode_coded_rows(upper, tile, q, rows.first, rows.second);
      return rows;
    }
  };
  const uint8_t* upper[few_tiles_together];
  exception_cursor exceptions[few_tiles_together];
  alignas(64) uint16_t decoded[tile_elements];

  void add(const amx_product& call, int t, int tile) {
    upper[t] = call.upper_bytes;
    exceptions[t] = call.exceptions(tile);
    __builtin_prefetch(exceptions[t].next);
  }
  template <int Rows, class Use>
  [[gnu::always_inline]] inline void open(int t, int step, const std::byte* at, const std::byte* next, Use use) {
    const __m512i bytes = load_upper_bytes(upper[t]);
    if constexpr (Rows >= T::rows_to_decode_in_registers)
      if (!exceptions[t].any(step)) [[likely]]
        return use(straight_rows{at, next, bytes});
    decode_tile<T::fetch_level>(bytes, at, decoded, {next - at, 0});
    exceptions[t].mend(step, decoded);
    finish_stores();
    use(decoded_rows{decoded});
  }
};

// Sums of some column tiles and few rows: [tiles][rows][16].
struct few_sums {
  alignas(64) float all[few_tiles_together * few_rows_max * tile_columns];
};

// sums [tiles][Rows][16] = x W^T over `steps` steps from `first_step` on, where w[t] is column tile t and x begins.
// Each step fetches the tiles of the step T::few_steps_ahead further; beyond the last one come those that lie `after`
// bytes from w[t]. Denormals must count as zero; a function of its own, because compilers move arithmetic over a change
// of that mode.
template <class T, int Rows, class Source>
[[gnu::noinline]] void stream_steps(const uint16_t* x, Source& from, const std::byte* const* w, int tiles,
                                    int first_step, int steps, ptrdiff_t after, float* sums) {
  constexpr ptrdiff_t step_bytes = 2 * tile_bytes(Source::storage);
  constexpr int ahead = T::few_steps_ahead;
  for (int i = 0; i < tiles * Rows; ++i) _mm512_store_ps(sums + i * tile_columns, _mm512_setzero_ps());
  for (int step = 0; step < steps; ++step, x += tile_elements) {
    const typename T::template few_inputs<Rows> inputs(x);
    for (int t = 0; t < tiles; ++t) {
      const std::byte* at = w[t] + ptrdiff_t{step} * step_bytes;
      from.template open<Rows>(
          t, first_step + step, at,
          step + ahead < steps ? at + ahead * step_bytes : w[t] + after + (step + ahead - steps) * step_bytes,
          [&](const auto& rows) __attribute__((always_inline)) { inputs.add(rows, sums + t * Rows * tile_columns); });
    }
  }
}

template <class T, class Source, int Rows = 1>
void stream_steps(int rows, const uint16_t* x, Source& from, const std::byte* const* w, int tiles, int first_step,
                  int steps, ptrdiff_t after, float* sums) {
  if (rows == Rows)
    stream_steps<T, Rows>(x, from, w, tiles, first_step, steps, after, sums);
  else if constexpr (Rows < T::few_rows)
    stream_steps<T, Source, Rows + 1>(rows, x, from, w, tiles, first_step, steps, after, sums);
}

// Column tiles, perhaps of several weights of one shape and storage, that multiply one input of at most T::few_rows
// rows.
template <class T, class Source>
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
      stream_steps<T>(call.m, call.x, from_, w_, count_, 0, tile_steps(call.k), after, sums.all);
    }
  }

 private:
  static constexpr bool scaled = Source::storage == weight_storage::e4m3;
  static int scale_blocks(int k) { return (k + scale_block - 1) / scale_block; }

  // Some blocks at a time, because scales are applied without that mode, and to change it takes a while.
  void multiply_scaled(const amx_product& call, ptrdiff_t after, few_sums& sums) {
    constexpr int blocks_together = 2;  // of the most rows; twice as many of half of them
    alignas(64) float partial[blocks_together * sizeof(few_sums) / sizeof(float)];
    const int together = call.m <= few_rows_max / 2 ? 2 * blocks_together : blocks_together;
    const int steps = tile_steps(call.k), blocks = scale_blocks(call.k);
    const ptrdiff_t block_sums = ptrdiff_t{count_} * call.m * tile_columns;
    for (ptrdiff_t i = 0; i < block_sums; i += tile_columns) _mm512_store_ps(sums.all + i, _mm512_setzero_ps());
    for (int first = 0; first < blocks; first += together) {
      const int count = blocks - first < together ? blocks - first : together;
      {
        const denormals_are_zero mode;
        for (int i = 0; i < count; ++i) {
          const int step = (first + i) * steps_in_scale_block;
          const int steps_of_block = steps - step < steps_in_scale_block ? steps - step : steps_in_scale_block;
          const ptrdiff_t bytes = ptrdiff_t{steps_of_block} * 2 * tile_bytes(Source::storage);
          after -= bytes;
          stream_steps<T>(call.m, call.x + ptrdiff_t{step} * tile_elements, from_, w_, count_, step, steps_of_block,
                          first + i + 1 < blocks ? bytes : bytes + after, partial + i * block_sums);
          for (int t = 0; t < count_; ++t) w_[t] += bytes;
        }
      }
      add_scaled(call.m, first, count, partial, sums.all);
    }
  }

  [[gnu::noinline]] void add_scaled(int rows, int first_block, int count, const float* partial, float* sums) const {
    for (int i = 0; i < count; ++i) {
      float* to = sums;
      for (int t = 0; t < count_; ++t) {
        const __m512 scale = _mm512_set1_ps(scales_[t][first_block + i]);
        for (int r = 0; r < rows; ++r, to += tile_columns, partial += tile_columns)
          _mm512_store_ps(to, _mm512_fmadd_ps(scale, _mm512_load_ps(partial), _mm512_load_ps(to)));
      }
    }
  }

  Source from_;
  const std::byte* w_[few_tiles_together];
  const float* scales_[few_tiles_together];
  int count_ = 0;
};

}  // namespace
}  // namespace troupe::kernels
