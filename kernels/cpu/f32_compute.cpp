#include "kernels/cpu/f32_compute.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/check.hpp"
#include "kernels/cpu/f32_pack.hpp"

namespace troupe::kernels {

static_assert(block_positions == kv_layout::tokens);

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

packed_matrix f32_compute::pack_room(weight_format format, uint32_t storage, int n, int k) const {
  if (format != weight_format::f32 || storage > static_cast<uint32_t>(weight_storage::e4m3)) return {};
  return empty_f32(static_cast<weight_storage>(storage), n, k);
}

// An input is a tight FP32 array.
size_t f32_compute::input_bytes(int m, int k) const {
  return static_cast<size_t>(m) * static_cast<size_t>(k) * sizeof(float);
}

void f32_compute::input_row(const float* x, int row, int k, std::byte* input) const {
  std::copy_n(x, k, reinterpret_cast<float*>(input) + int64_t{row} * k);
}

void f32_compute::input_row(const uint16_t* x, int row, int k, std::byte* input) const {
  lanes_.bf16_widen_row(x, reinterpret_cast<float*>(input) + int64_t{row} * k, k);
}

void f32_compute::multiply(const packed_matrix& weight, const float* x, int64_t ldx, float* y, int64_t ldy, int m,
                           int n_begin, int n_end) const {
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

void f32_compute::matmul(const packed_matrix& weight, const product_input& x, float* y, int64_t ldy, int n_begin,
                         int n_end) const {
  require(x.k == weight.k(), "the input is as wide as the weight");
  multiply(weight, reinterpret_cast<const float*>(x.data), x.k, y, ldy, x.m, n_begin, n_end);
}

void f32_compute::matmul(const packed_matrix& weight, const float* x, int64_t ldx, float* y, int64_t ldy, int m,
                         int n_begin, int n_end, scratch&) const {
  multiply(weight, x, ldx, y, ldy, m, n_begin, n_end);
}

bool f32_compute::matmul_apart(const packed_matrix& weight, const product_input& x, element kind,
                               std::byte* const* rows, int n_begin, int n_end) const {
  constexpr int rows_together = 32, columns_together = 64;
  float y[rows_together * columns_together];
  bool finite = true;
  for (int column = n_begin; column < n_end; column += columns_together) {
    const int end = std::min(n_end, column + columns_together);
    for (int row = 0; row < x.m; row += rows_together) {
      const int count = std::min(rows_together, x.m - row);
      const product_input part{x.data + input_bytes(row, x.k), count, x.k};
      matmul(weight, part, y - column, columns_together, column, end);
      for (int r = 0; r < count; ++r) {
        const float* from = y + r * columns_together;
        std::byte* to = rows[row + r];
        for (int j = 0; j < end - column; ++j) finite &= std::isfinite(from[j]);
        if (kind == element::bf16)
          lanes_.bf16_round_row(from, reinterpret_cast<uint16_t*>(to) + column, end - column);
        else
          std::copy_n(from, end - column, reinterpret_cast<float*>(to) + column);
      }
    }
  }
  return finite;
}

void f32_compute::gated_matmul(const packed_matrix& gate, const packed_matrix& up, const product_input& x,
                               std::byte* out, int n_begin, int n_end) const {
  require(gate.n() == up.n() && gate.k() == up.k(), "gate and up have one shape");
  constexpr int columns_together = 64, rows_together = 32;
  float y[rows_together * columns_together];
  auto* to = reinterpret_cast<float*>(out);
  for (int column = n_begin; column < n_end; column += columns_together) {
    const int end = std::min(n_end, column + columns_together);
    for (int row = 0; row < x.m; row += rows_together) {
      const int count = std::min(rows_together, x.m - row);
      const product_input part{x.data + input_bytes(row, x.k), count, x.k};
      float* gated = to + int64_t{row} * gate.n();
      matmul(gate, part, gated, gate.n(), column, end);
      matmul(up, part, y - column, columns_together, column, end);
      for (int r = 0; r < count; ++r) {
        float* at = gated + int64_t{r} * gate.n() + column;
        lanes_.silu_mul(at, y + r * columns_together, at, end - column);
      }
    }
  }
}

void f32_compute::rms_norm(const float* x, const float* weight, float* out, int width, float eps) const {
  lanes_.rms_norm(x, weight, out, width, eps);
}

void f32_compute::silu_mul(const float* gate, const float* up, float* out, int width) const {
  lanes_.silu_mul(gate, up, out, width);
}

void f32_compute::combine_row(const std::byte* const* outputs, element kind, const routed_expert* experts, int count,
                              const float* shared, float* x, int width) const {
  static_assert(sizeof(routed_expert) == 2 * sizeof(float));
  lanes_.combine_row(outputs, kind == element::bf16, &experts->gate, 2, count, shared, x, width);
}

void f32_compute::axpy(float factor, const float* x, float* y, int width) const { lanes_.axpy(factor, x, y, width); }

void f32_compute::sigmoid(const float* z, float* out, int count) const { lanes_.sigmoid(z, out, count); }

kv_layout f32_compute::layout_kv(int rk, int dr) const {
  require(rk > 0 && dr >= 0, "a latent has a width");
  const int width = padded_to_lanes(rk) + padded_to_lanes(dr);
  return {rk, dr, kv_layout::tokens * static_cast<size_t>(width) * sizeof(float)};
}

void f32_compute::kv_write(const kv_layout& layout, std::byte* block, int offset, const float* c,
                           const float* k_r) const {
  require(offset >= 0 && offset < kv_layout::tokens, "a KV offset lies inside its block");
  const int rk_padded = padded_to_lanes(layout.rk), dr_padded = padded_to_lanes(layout.dr);
  float* latent = reinterpret_cast<float*>(block) + int64_t{offset} * (rk_padded + dr_padded);
  float* key = latent + rk_padded;
  std::copy_n(c, layout.rk, latent);
  std::fill(latent + layout.rk, key, 0.0F);
  std::copy_n(k_r, layout.dr, key);
  std::fill(key + layout.dr, key + dr_padded, 0.0F);
}

void f32_compute::require_attention(const mla_shape& shape, const kv_layout& layout,
                                    std::span<const std::byte* const> blocks, std::span<const mla_row> rows,
                                    int head_begin, int head_end) {
  require(shape.rk == layout.rk && shape.dr == layout.dr, "the KV layout has the attention's widths");
  require(head_begin >= 0 && head_begin <= head_end && head_end <= shape.heads, "the heads exist");
  for (const mla_row& row : rows)
    require(row.length > 0 && static_cast<int64_t>(blocks.size()) * kv_layout::tokens >= row.length,
            "attention has a block for each of its positions");
}

// Queries and attended latents are FP32; the kernel merges a partial result each 32 positions, in order, so a row's
// positions are not divided.
mla_form f32_compute::form_of(const mla_shape& shape) const {
  const auto heads = static_cast<size_t>(shape.heads);
  return {.query_bytes = heads * static_cast<size_t>(shape.rk + shape.dr) * sizeof(float),
          .attended_bytes = heads * static_cast<size_t>(shape.rk) * sizeof(float)};
}

void f32_compute::mla_query(const mla_shape& shape, const float* q, int head_begin, int head_end,
                            std::byte* out) const {
  const ptrdiff_t width = shape.rk + shape.dr;
  std::copy_n(q + head_begin * width, (head_end - head_begin) * width,
              reinterpret_cast<float*>(out) + head_begin * width);
}

void f32_compute::mla_query(const mla_shape& shape, const uint16_t* q, int head_begin, int head_end,
                            std::byte* out) const {
  const int width = shape.rk + shape.dr;
  lanes_.bf16_widen_row(q + int64_t{head_begin} * width, reinterpret_cast<float*>(out) + int64_t{head_begin} * width,
                        (head_end - head_begin) * width);
}

void f32_compute::mla_attend(const mla_shape& shape, const kv_layout& layout, std::span<const std::byte* const> blocks,
                             std::span<const mla_row> rows, int head_begin, int head_end, scratch& memory) const {
  require_attention(shape, layout, blocks, rows, head_begin, head_end);
  if (head_begin == head_end) return;
  const size_t floats = mla_scratch_floats(head_end - head_begin, shape.rk, shape.dr);
  mla_call call{};
  call.rk = shape.rk;
  call.dr = shape.dr;
  call.scale = shape.scale;
  call.blocks = blocks.data();
  call.head_begin = head_begin;
  call.head_end = head_end;
  call.scratch = reinterpret_cast<float*>(memory.take(floats * sizeof(float)));
  for (const mla_row& row : rows) {
    call.q = reinterpret_cast<const float*>(row.query);
    call.length = row.length;
    call.out = reinterpret_cast<float*>(row.attended);
    lanes_.mla_core(call);
  }
}

void f32_compute::mla_attend_span(const mla_shape&, const kv_layout&, std::span<const std::byte* const>, const mla_row&,
                                  const mla_span&, int, int, std::byte*, scratch&) const {
  require(false, "profile f32 does not divide a row's positions");
}

void f32_compute::mla_merge(const mla_shape&, std::byte*, int, int, const mla_row&, int, int) const {
  require(false, "profile f32 does not divide a row's positions");
}

void f32_compute::mla_input_row(const mla_shape& shape, const std::byte* attended, int head, int row,
                                std::byte* input) const {
  f32_compute::input_row(reinterpret_cast<const float*>(attended) + int64_t{head} * shape.rk, row, shape.rk, input);
}

double f32_compute::peak_work(int rounds) const { return lanes_.peak_work(rounds); }

uint32_t f32_compute::read_through(std::span<const std::byte> memory) const {
  return lanes_.read_through(memory.data(), memory.size());
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
