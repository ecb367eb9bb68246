// Profile amx_bf16: products in AMX tiles, latent KV in BF16, everything else as profile f32 with AVX-512.
#pragma once

#include "kernels/cpu/f32_compute.hpp"

namespace troupe::kernels {

// Requires: cpu_features::detect().amx_bf16.
class amx_compute final : public f32_compute {
 public:
  amx_compute() : f32_compute(avx512_lanes()) {}

  profile numeric_profile() const override { return profile::amx_bf16; }
  std::string_view description() const override { return "amx_bf16"; }
  weight_format preferred_format() const override { return weight_format::amx_bf16; }
  void matmul(const packed_matrix& weight, const float* x, int64_t ldx, float* y, int64_t ldy, int m, int n_begin,
              int n_end, scratch& memory) const override;

 protected:
  packed_matrix pack_as(const weight_view& weight, weight_format format, bool transposed) const override;
  bool bf16_kv() const override { return true; }
};

}  // namespace troupe::kernels
