// Profile f32 over one table of lane kernels; profile amx_bf16 builds on it.
#pragma once

#include "kernels/compute.hpp"
#include "kernels/cpu/lanes.hpp"

namespace troupe::kernels {

class f32_compute : public compute {
 public:
  explicit f32_compute(const lane_kernels& lanes);

  profile numeric_profile() const override { return profile::f32; }
  std::string_view description() const override;
  weight_format preferred_format() const override { return weight_format::f32; }

  packed_matrix pack(const weight_view& weight, weight_format format) const override;
  packed_matrix pack_transposed(const weight_view& weight, weight_format format) const override;

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

  void rms_norm(const float* x, const float* weight, float* out, int width, float eps) const override;
  void silu_mul(const float* gate, const float* up, float* out, int width) const override;
  void combine_row(const std::byte* const* outputs, element kind, const routed_expert* experts, int count,
                   const float* shared, float* x, int width) const override;
  void axpy(float factor, const float* x, float* y, int width) const override;
  void sigmoid(const float* z, float* out, int count) const override;

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
  uint32_t read_through(std::span<const std::byte> memory) const override;
  int argmax(const float* logits, int count) const override;
  float log_sum_exp(const float* logits, int count, scratch& memory) const override;

 protected:
  // Packs for `format`; the profile decides which formats it knows.
  virtual packed_matrix pack_as(const weight_view& weight, weight_format format, bool transposed) const;
  // Stops the process unless [n_begin, n_end) is a range that matmul takes.
  static void require_columns(int n, int n_begin, int n_end);
  // Stops the process unless the blocks reach every row's last position and the heads exist.
  static void require_attention(const mla_shape& shape, const kv_layout& layout,
                                std::span<const std::byte* const> blocks, std::span<const mla_row> rows, int head_begin,
                                int head_end);

 private:
  void multiply(const packed_matrix& weight, const float* x, int64_t ldx, float* y, int64_t ldy, int m, int n_begin,
                int n_end) const;

  const lane_kernels& lanes_;
};

}  // namespace troupe::kernels
