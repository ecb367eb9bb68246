#include "kernels/cpu/f32_compute.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/check.hpp"
#include "kernels/cpu/f32_pack.hpp"

namespace troupe::kernels {

f32_compute::f32_compute(const lane_kernels& lanes) : lanes_(lanes) {}

std::string_view f32_compute::description() const {
  switch (lanes_.set) {
    case isa::scalar: return "f32 (scalar)";
    case isa::avx2: return "f32 (avx2)";
    case isa::avx512: return "f32 (avx512)";
  }
  return "f32";
}

void f32_compute::require_columns(int n, int n_begin, int n_end) {
  require(n_begin >= 0 && n_begin % lane_count == 0 && n_end <= n && (n_end % lane_count == 0 || n_end == n),
          "a column range starts and ends at multiples of 16 or at n");
}

packed_matrix f32_compute::pack_as(const weight_view& weight, weight_format format, bool transposed) const {
  require(format == weight_format::f32, "profile f32 packs weights for f32 only");
  return pack_f32(weight_reader(weight, transposed));
}

packed_matrix f32_compute::pack(const weight_view& weight, weight_format format) const {
  return pack_as(weight, format, false);
}

packed_matrix f32_compute::pack_transposed(const weight_view& weight, weight_format format) const {
  return pack_as(weight, format, true);
}

void f32_compute::matmul(const packed_matrix& weight, const float* x, int64_t ldx, float* y, int64_t ldy, int m,
                         int n_begin, int n_end, scratch&) const {
  require(weight && weight.format() == weight_format::f32, "the weight is packed for f32");
  require_columns(weight.n(), n_begin, n_end);
  if (m <= 0 || n_begin >= n_end) return;
  f32_product product = f32_product_of(weight);
  product.x = x;
  product.ldx = ldx;
  product.y = y;
  product.ldy = ldy;
  product.m = m;
  product.n_begin = n_begin;
  product.n_end = n_end;
  lanes_.matmul(product);
}

void f32_compute::rms_norm(const float* x, const float* weight, float* out, int width, float eps) const {
  lanes_.rms_norm(x, weight, out, width, eps);
}

void f32_compute::silu_mul(const float* gate, const float* up, float* out, int width) const {
  lanes_.silu_mul(gate, up, out, width);
}

void f32_compute::axpy(float factor, const float* x, float* y, int width) const { lanes_.axpy(factor, x, y, width); }

void f32_compute::sigmoid(const float* z, float* out, int count) const { lanes_.sigmoid(z, out, count); }

kv_layout f32_compute::layout_kv(int rk, int dr) const {
  require(rk > 0 && dr >= 0, "a latent has a width");
  const int width = padded_to_lanes(rk) + padded_to_lanes(dr);
  const size_t element = bf16_kv() ? sizeof(uint16_t) : sizeof(float);
  return {rk, dr, kv_layout::tokens * static_cast<size_t>(width) * element};
}

void f32_compute::kv_write(const kv_layout& layout, std::byte* block, int offset, const float* c,
                           const float* k_r) const {
  require(offset >= 0 && offset < kv_layout::tokens, "a KV offset lies inside its block");
  const int rk_padded = padded_to_lanes(layout.rk), dr_padded = padded_to_lanes(layout.dr);
  const int64_t first = int64_t{offset} * (rk_padded + dr_padded);
  const auto write = [&](auto* latent, auto round) {
    auto* key = latent + rk_padded;
    round(c, latent, layout.rk);
    std::fill(latent + layout.rk, latent + rk_padded, 0);
    round(k_r, key, layout.dr);
    std::fill(key + layout.dr, key + dr_padded, 0);
  };
  if (bf16_kv()) {
    write(reinterpret_cast<uint16_t*>(block) + first, bf16_round_row);
  } else {
    write(reinterpret_cast<float*>(block) + first,
          [](const float* from, float* to, int count) { std::copy_n(from, count, to); });
  }
}

void f32_compute::mla_core(const mla_shape& shape, const kv_layout& layout, const float* q,
                           std::span<const std::byte* const> blocks, int length, int head_begin, int head_end,
                           float* out, scratch& memory) const {
  require(shape.rk == layout.rk && shape.dr == layout.dr, "the KV layout has the attention's widths");
  require(head_begin >= 0 && head_end <= shape.heads, "the heads exist");
  require(length > 0 && static_cast<int64_t>(blocks.size()) * kv_layout::tokens >= length,
          "attention has a block for each of its positions");
  if (head_begin >= head_end) return;
  const size_t floats = mla_scratch_floats(head_end - head_begin, shape.rk, shape.dr);
  mla_call call{};
  call.rk = shape.rk;
  call.dr = shape.dr;
  call.scale = shape.scale;
  call.bf16 = bf16_kv();
  call.q = q;
  call.blocks = blocks.data();
  call.length = length;
  call.head_begin = head_begin;
  call.head_end = head_end;
  call.out = out;
  call.scratch = reinterpret_cast<float*>(memory.take(floats * sizeof(float)));
  lanes_.mla_core(call);
}

int f32_compute::argmax(const float* logits, int count) const {
  return lanes_.first_equal(logits, count, lanes_.maximum(logits, count));
}

float f32_compute::log_sum_exp(const float* logits, int count, scratch&) const {
  const float largest = lanes_.maximum(logits, count);
  if (std::isinf(largest)) return largest;
  const double sum = lanes_.sum_exp(logits, count, largest);
  return largest + log_f32(static_cast<float>(sum));
}

}  // namespace troupe::kernels
