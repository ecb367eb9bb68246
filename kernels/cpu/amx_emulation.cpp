#include "kernels/cpu/amx_emulation.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/compute.hpp"
#include "kernels/cpu/amx_coding.hpp"

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
  const std::byte* tile = call.first_tile(tile_column) + ptrdiff_t{step} * 2 * tile_bytes(call.storage);
  std::array<uint16_t, tile_elements> decoded;
  if (call.storage == weight_storage::bf16_coded) {
    decode_coded_tile(call.upper_bytes, tile, decoded.data());
    exception_cursor exceptions = call.exceptions(tile_column);
    while (exceptions.next != exceptions.end && *exceptions.next >> 17U < static_cast<uint32_t>(step))
      ++exceptions.next;
    exceptions.mend(step, decoded.data());
  }
  depth_values w;
  for (int i = 0; i < tile_depth; ++i) {
    const int c = column % tile_columns;
    float value;
    switch (call.storage) {
      case weight_storage::e4m3:
        value = e4m3_decode(reinterpret_cast<const uint8_t*>(tile)[e4m3_position(c, call.place(i))]);
        break;
      case weight_storage::bf16_coded:
        value = bf16_widen(decoded[static_cast<size_t>(bf16_position(c, call.place(i)))]);
        break;
      default: value = bf16_widen(reinterpret_cast<const uint16_t*>(tile)[bf16_position(c, call.place(i))]);
    }
    w[static_cast<size_t>(i)] = flushed(value);
  }
  return w;
}

// 32 inputs of a row [k] at one step, as BF16 values.
depth_values inputs_at(const float* row, int k, int step) {
  depth_values x{};
  const int count = std::min(tile_depth, k - step * tile_depth);
  for (int i = 0; i < count; ++i)
    x[static_cast<size_t>(i)] = flushed(bf16_widen(bf16_round(row[step * tile_depth + i])));
  return x;
}

float product_element(const amx_product& call, const float* row, int column) {
  const int steps = tile_steps(call.k);
  const bool scaled = call.storage == weight_storage::e4m3;
  const int blocks = (call.k + scale_block - 1) / scale_block;
  float total = 0, sum = 0;
  for (int step = 0; step < steps; ++step) {
    sum = dot_step(inputs_at(row, call.k, step), weights_at(call, column, step), sum);
    const bool block_ends = step % steps_in_scale_block == steps_in_scale_block - 1 || step == steps - 1;
    if (scaled && block_ends) {
      const float scale = call.scales[int64_t{column / tile_columns} * blocks + step / steps_in_scale_block];
      total = std::fma(scale, sum, total);
      sum = 0;
    }
  }
  return scaled ? total : sum;
}

// A latent row's values.
struct latent_rows {
  const amx_attention& call;
  const std::byte* const* blocks;

  float at(int position, int i) const {
    const auto* block = reinterpret_cast<const uint16_t*>(blocks[position / block_positions]);
    const ptrdiff_t step = call.latent_position(position % block_positions, i / tile_depth);
    const int at = i % tile_depth;
    return flushed(bf16_widen(block[step + (call.chained ? chained_place(at) : at)]));
  }
};

float score(const latent_rows& rows, const std::vector<float>& query, int position) {
  float sum = 0;
  for (int step = 0; step < rows.call.steps(); ++step) {
    depth_values latent, q;
    for (int i = 0; i < tile_depth; ++i) {
      latent[static_cast<size_t>(i)] = rows.at(position, step * tile_depth + i);
      q[static_cast<size_t>(i)] = query[static_cast<size_t>(step * tile_depth + i)];
    }
    sum = dot_step(latent, q, sum);
  }
  return sum * rows.call.scale;
}

// m, l and o [rk] of one head.
struct partial_result {
  float m = 0, l = 0;
  std::vector<float> o;
};

partial_result attend_span(const latent_rows& rows, const std::vector<float>& query, int first, int count) {
  partial_result result;
  std::vector<float> p(span_positions, 0.0F);
  for (int t = 0; t < count; ++t) p[static_cast<size_t>(t)] = score(rows, query, first + t);
  result.m = *std::max_element(p.begin(), p.begin() + count);
  std::array<float, 4> chains{};
  for (int t = 0; t < count; ++t) {
    float& value = p[static_cast<size_t>(t)];
    value = exp_f32(value - result.m);
    chains[static_cast<size_t>(t % 4)] += value;
    value = flushed(bf16_widen(bf16_round(value)));
  }
  result.l = (chains[0] + chains[1]) + (chains[2] + chains[3]);
  for (int i = 0; i < rows.call.rk; ++i) {
    float sum = 0;
    for (int step = 0; step * tile_depth < count; ++step) {
      depth_values weights{}, values{};
      for (int at = 0; at < tile_depth && step * tile_depth + at < count; ++at) {
        weights[static_cast<size_t>(at)] = p[static_cast<size_t>(step * tile_depth + at)];
        values[static_cast<size_t>(at)] = rows.at(first + step * tile_depth + at, i);
      }
      sum = dot_step(weights, values, sum);
    }
    result.o.push_back(sum);
  }
  return result;
}

void merge(const partial_result& later, partial_result& result) {
  const float both = std::max(result.m, later.m);
  const float keep_old = exp_f32(result.m - both), keep_new = exp_f32(later.m - both);
  result.l = std::fma(result.l, keep_old, later.l * keep_new);
  result.m = both;
  for (size_t i = 0; i < result.o.size(); ++i) result.o[i] = std::fma(result.o[i], keep_old, later.o[i] * keep_new);
}

}  // namespace

void amx_emulate(const amx_product& call, const float* x, int64_t ldx, float* y, int64_t ldy) {
  for (int row = 0; row < call.m; ++row)
    for (int column = call.n_begin; column < call.n_end; ++column)
      y[row * ldy + column] = product_element(call, x + row * ldx, column);
}

void amx_emulate_attention(const amx_attention& call, const std::byte* const* blocks, const float* q, int length,
                           uint16_t* out) {
  const latent_rows rows{call, blocks};
  for (int head = 0; head < call.heads; ++head) {
    const float* from = q + ptrdiff_t{head} * (call.rk + call.dr);
    std::vector<float> query(static_cast<size_t>(call.width()), 0.0F);
    const auto key = static_cast<size_t>(call.latent_steps() * tile_depth);
    for (int i = 0; i < call.rk; ++i) query[static_cast<size_t>(i)] = flushed(bf16_widen(bf16_round(from[i])));
    for (int i = 0; i < call.dr; ++i)
      query[key + static_cast<size_t>(i)] = flushed(bf16_widen(bf16_round(from[call.rk + i])));
    partial_result result;
    for (int first = 0; first < length; first += span_positions) {
      partial_result span = attend_span(rows, query, first, std::min(span_positions, length - first));
      if (first == 0)
        result = std::move(span);
      else
        merge(span, result);
    }
    const float inverse = 1.0F / result.l;
    for (const float o : result.o) *out++ = bf16_round(o * inverse);
  }
}

}  // namespace troupe::kernels
