// Profile amx_bf16: products and attention in tiles of BF16, latent KV in BF16, everything else as profile f32 with
// AVX-512.
#pragma once

#include "kernels/cpu/amx_kernels.hpp"
#include "kernels/cpu/f32_compute.hpp"

namespace troupe::kernels {

// Requires: the CPU can run `tiles` and AVX-512.
class amx_compute final : public f32_compute {
 public:
  explicit amx_compute(const amx_kernels& tiles) : f32_compute(avx512_lanes()), tiles_(tiles) {}

  profile numeric_profile() const override { return profile::amx_bf16; }
  std::string_view description() const override;
  weight_format preferred_format() const override { return weight_format::amx_bf16; }

  packed_matrix pack_room(weight_format format, uint32_t storage, int n, int k) const override;
  size_t input_bytes(int m, int k) const override;
  void input_row(const float* x, int row, int k, std::byte* input) const override;
  void input_row(const uint16_t* x, int row, int k, std::byte* input) const override;
  void matmul(const packed_matrix& weight, const product_input& x, float* y, int64_t ldy, int n_begin,
              int n_end) const override;
  bool matmul_apart(const packed_matrix& weight, const product_input& x, element kind, std::byte* const* rows,
                    int n_begin, int n_end) const override;
  void gated_matmul(const packed_matrix& gate, const packed_matrix& up, const product_input& x, std::byte* out,
                    int n_begin, int n_end) const override;
  void matmul(const packed_matrix& weight, const float* x, int64_t ldx, float* y, int64_t ldy, int m, int n_begin,
              int n_end, scratch& memory) const override;

  kv_layout layout_kv(int rk, int dr) const override;
  void kv_write(const kv_layout& layout, std::byte* block, int offset, const float* c, const float* k_r) const override;
  mla_form form_of(const mla_shape& shape) const override;
  void mla_query(const mla_shape& shape, const float* q, int head_begin, int head_end, std::byte* out) const override;
  void mla_query(const mla_shape& shape, const uint16_t* q, int head_begin, int head_end,
                 std::byte* out) const override;
  void mla_attend(const mla_shape& shape, const kv_layout& layout, std::span<const std::byte* const> blocks,
                  std::span<const mla_row> rows, int head_begin, int head_end, scratch& memory) const override;
  void mla_attend_span(const mla_shape& shape, const kv_layout& layout, std::span<const std::byte* const> blocks,
                       const mla_row& row, const mla_span& span, int head_begin, int head_end, std::byte* partial,
                       scratch& memory) const override;
  void mla_merge(const mla_shape& shape, std::byte* partials, int merged, int spans, const mla_row& row, int piece,
                 int pieces) const override;
  void mla_input_row(const mla_shape& shape, const std::byte* attended, int head, int row,
                     std::byte* input) const override;
  double peak_work(int rounds) const override;

 protected:
  packed_matrix pack_as(const weight_view& weight, weight_format format, bool transposed) const override;

 private:
  amx_product product_of(const packed_matrix& weight, const product_input& x, int n_begin, int n_end) const;

  const amx_kernels& tiles_;
};

}  // namespace troupe::kernels
