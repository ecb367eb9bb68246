// The FP32 kernels as a table of functions, one table per instruction set.
//
// Profile f32 is defined in 16 lanes: a reduction keeps 16 partial sums (lane l takes the indices that
// leave l modulo 16) and adds them in a fixed tree. The templates in cpu/f32_*.hpp are written once over
// a set of lane operations; cpu/f32_scalar.cpp, f32_avx2.cpp and f32_avx512.cpp each supply one and so
// give the same bits. Only plain pointers cross this boundary, so that no inline library code compiled
// for one instruction set can be linked into another's objects.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/profile.hpp"

namespace troupe::kernels {

inline constexpr int lane_count = 16;
inline constexpr int block_positions = 32;  // positions in a KV block
inline constexpr int scale_block = 128;     // rows and columns of a weight that share one FP8 scale

// How a packed weight keeps its values. All widen to FP32 exactly; coded BF16 (amx_layout.hpp) is for tiles alone.
enum class weight_storage : uint32_t { f32, bf16, e4m3, bf16_coded };

// y[i, j] = sum over k of x[i, k] * w[j, k], columns j in [n_begin, n_end).
struct f32_product {
  weight_storage storage;
  const std::byte* panels;  // [ceil(n/16)][k][16], columns beyond n are zero
  const float* scales;      // e4m3: [ceil(n/16)][ceil(k/128)]
  int n, k;
  const float* x;  // [m, k], row stride ldx
  int64_t ldx;
  float* y;  // [m, n], row stride ldy
  int64_t ldy;
  int m;
  int n_begin, n_end;
};

// One query row of absorbed attention. Latent rows are FP32 [rk_padded + dr_padded], both multiples of 16
// with zeros in the padding.
struct mla_call {
  int rk, dr;
  float scale;
  const float* q;                  // [heads, rk + dr]
  const std::byte* const* blocks;  // ceil(length / 32) blocks of 32 rows
  int length;
  int head_begin, head_end;
  float* out;      // [heads, rk]
  float* scratch;  // mla_scratch_floats(...) floats, 64-byte aligned
};

[[gnu::always_inline]] constexpr inline int padded_to_lanes(int width) {
  return (width + lane_count - 1) / lane_count * lane_count;
}

// Working memory of an mla_call: padded queries, accumulators, running maxima and sums.
[[gnu::always_inline]] constexpr inline size_t mla_scratch_floats(int heads, int rk, int dr) {
  const auto width = static_cast<size_t>(padded_to_lanes(rk)) + static_cast<size_t>(padded_to_lanes(dr));
  const auto rows = static_cast<size_t>(heads);
  return rows * (width + static_cast<size_t>(padded_to_lanes(rk)) + 2) + 2 * lane_count;
}

struct lane_kernels {
  isa set;
  void (*matmul)(const f32_product& call);
  void (*rms_norm)(const float* x, const float* weight, float* out, int width, float eps);
  void (*silu_mul)(const float* gate, const float* up, float* out, int width);
  void (*axpy)(float factor, const float* x, float* y, int width);
  void (*sigmoid)(const float* z, float* out, int count);
  void (*bf16_round_row)(const float* x, uint16_t* out, int count);
  void (*bf16_widen_row)(const uint16_t* x, float* out, int count);
  // x += (sum over i of gates[i * stride] * outputs[i], one chain of fused multiply-adds) + shared. Rows FP32 or BF16.
  void (*combine_row)(const std::byte* const* outputs, bool bf16, const float* gates, int stride, int count,
                      const float* shared, float* x, int width);
  void (*mla_core)(const mla_call& call);
  // The largest value; NaN is passed over; -infinity if nothing is left.
  float (*maximum)(const float* x, int count);
  // The lowest index whose value equals `value`; 0 if none.
  int (*first_equal)(const float* x, int count, float value);
  // sum of exp(x - shift): FP32 lanes within blocks of 512, double across blocks.
  double (*sum_exp)(const float* x, int count, float shift);
  // out = exp((x - shift) / divisor).
  void (*exp_scaled)(const float* x, float shift, float divisor, float* out, int count);
  // compute::peak_work.
  double (*peak_work)(int rounds);
  // compute::read_through.
  uint32_t (*read_through)(const std::byte* memory, size_t bytes);
};

const lane_kernels& scalar_lanes();
const lane_kernels& avx2_lanes();    // Requires: the CPU has AVX2 and FMA.
const lane_kernels& avx512_lanes();  // Requires: the CPU has AVX-512 F, BW, DQ, VL.
const lane_kernels& lanes_of(isa set);
// The widest that this CPU has.
const lane_kernels& best_lanes();

}  // namespace troupe::kernels
