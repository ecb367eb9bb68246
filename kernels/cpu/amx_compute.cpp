#include "kernels/cpu/amx_compute.hpp"

#include "kernels/check.hpp"
#include "kernels/cpu/amx_matmul.hpp"
#include "kernels/cpu/amx_pack.hpp"

namespace troupe::kernels {

packed_matrix amx_compute::pack_as(const weight_view& weight, weight_format format, bool transposed) const {
  if (format == weight_format::f32) return f32_compute::pack_as(weight, format, transposed);
  return pack_amx(weight_reader(weight, transposed));
}

void amx_compute::matmul(const packed_matrix& weight, const float* x, int64_t ldx, float* y, int64_t ldy, int m,
                         int n_begin, int n_end, scratch& memory) const {
  require(static_cast<bool>(weight), "the weight is packed");
  // The router's product stays in FP32 (its choices are discrete).
  if (weight.format() == weight_format::f32)
    return f32_compute::matmul(weight, x, ldx, y, ldy, m, n_begin, n_end, memory);
  require_columns(weight.n(), n_begin, n_end);
  if (m <= 0 || n_begin >= n_end) return;
  amx_product product = amx_product_of(weight);
  product.x = x;
  product.ldx = ldx;
  product.y = y;
  product.ldy = ldy;
  product.m = m;
  product.n_begin = n_begin;
  product.n_end = n_end;
  product.scratch = memory.take(amx_scratch_bytes(m, weight.k()));
  amx_matmul(product);
}

}  // namespace troupe::kernels
