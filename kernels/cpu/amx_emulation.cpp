#include "kernels/cpu/amx_emulation.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/compute.hpp"

namespace troupe::kernels {
namespace {

// Tiles read denormals as zero and flush denormal results to zero, whatever MXCSR says.
float flushed(float x) { return std::fabs(x) < 0x1p-126F ? std::copysign(0.0F, x) : x; }

float product_sum(float a, float b, float sum) { return flushed(std::fma(a, b, sum)); }

using depth_values = std::array<float, tile_depth>;

// TDPBF16PS for one element. The instruction sums its even and its odd inputs in two chains of fused
// multiply-adds that start from zero, adds the two, and adds that to the accumulator (Intel SDM; checked here against
// the hardware bit by bit).
float dot_step(const depth_values& x, const depth_values& w, float sum) {
  float even = 0, odd = 0;
  for (size_t i = 0; i < tile_depth; i += 2) {
    even = product_sum(x[i], w[i], even);
    odd = product_sum(x[i + 1], w[i + 1], odd);
  }
  return flushed(flushed(sum) + flushed(even + odd));
}

// Column `column`'s weights at one step, as BF16 values.
depth_values weights_at(const amx_product& call, int column, int step) {
  const int tile_column = column / tile_columns;
  const int64_t tile = (int64_t{tile_column / 2} * tile_steps(call.k) + step) * 2 + tile_column % 2;
  depth_values w;
  for (int i = 0; i < tile_depth; ++i) {
    const int c = column % tile_columns;
    float value;
    if (call.storage == weight_storage::e4m3) {
      value = e4m3_decode(reinterpret_cast<const uint8_t*>(call.body)[tile * tile_elements + e4m3_position(c, i)]);
    } else {
      value = bf16_widen(reinterpret_cast<const uint16_t*>(call.body)[tile * tile_elements + bf16_position(c, i)]);
    }
    w[static_cast<size_t>(i)] = flushed(value);
  }
  return w;
}

depth_values inputs_at(const amx_product& call, int row, int step) {
  depth_values x{};
  const int count = std::min(tile_depth, call.k - step * tile_depth);
  for (int i = 0; i < count; ++i) {
    const float value = call.x[row * call.ldx + step * tile_depth + i];
    x[static_cast<size_t>(i)] = flushed(bf16_widen(bf16_round(value)));
  }
  return x;
}

float element(const amx_product& call, int row, int column) {
  const int steps = tile_steps(call.k);
  const bool scaled = call.storage == weight_storage::e4m3;
  const int blocks = (call.k + scale_block - 1) / scale_block;
  float total = 0, sum = 0;
  for (int step = 0; step < steps; ++step) {
    sum = dot_step(inputs_at(call, row, step), weights_at(call, column, step), sum);
    const bool block_ends = step % steps_in_scale_block == steps_in_scale_block - 1 || step == steps - 1;
    if (scaled && block_ends) {
      const float scale = call.scales[int64_t{column / tile_columns} * blocks + step / steps_in_scale_block];
      total = std::fma(scale, sum, total);
      sum = 0;
    }
  }
  return scaled ? total : sum;
}

}  // namespace

void amx_emulate(const amx_product& call) {
  for (int row = 0; row < call.m; ++row)
    for (int column = call.n_begin; column < call.n_end; ++column)
      call.y[row * call.ldy + column] = element(call, row, column);
}

}  // namespace troupe::kernels
