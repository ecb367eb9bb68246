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
  void matmul(const packed_matrix& weight, const float* x, int64_t ldx, float* y, int64_t ldy, int m, int n_begin,
              int n_end, scratch& memory) const override;

  void rms_norm(const float* x, const float* weight, float* out, int width, float eps) const override;
  void silu_mul(const float* gate, const float* up, float* out, int width) const override;
  void axpy(float factor, const float* x, float* y, int width) const override;
  void sigmoid(const float* z, float* out, int count) const override;

  kv_layout layout_kv(int rk, int dr) const override;
  void kv_write(const kv_layout& layout, std::byte* block, int offset, const float* c, const float* k_r) const override;
  void mla_core(const mla_shape& shape, const kv_layout& layout, const float* q,
                std::span<const std::byte* const> blocks, int length, int head_begin, int head_end, float* out,
                scratch& memory) const override;

  int argmax(const float* logits, int count) const override;
  float log_sum_exp(const float* logits, int count, scratch& memory) const override;

 protected:
  // Packs for `format`; the profile decides which formats it knows.
  virtual packed_matrix pack_as(const weight_view& weight, weight_format format, bool transposed) const;
  // Whether latent rows are stored as BF16.
  virtual bool bf16_kv() const { return false; }
  // Stops the process unless [n_begin, n_end) is a range that matmul takes.
  static void require_columns(int n, int n_begin, int n_end);

 private:
  const lane_kernels& lanes_;
};

}  // namespace troupe::kernels
