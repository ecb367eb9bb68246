// Profile amx_bf16's products and attention in plain C++: the reference for the tiles' bits, on any machine, slowly.
#pragma once

#include "kernels/cpu/amx_attention.hpp"
#include "kernels/cpu/amx_layout.hpp"

namespace troupe::kernels {

// As amx_matmul, of FP32 rows x [call.m, k] with row stride ldx; `call.x` is not used.
void amx_emulate(const amx_product& call, const float* x, int64_t ldx, float* y, int64_t ldy);

// Attention of one row: q [heads, rk + dr] over positions 0 .. length - 1 of `blocks`; out [heads, rk] BF16.
void amx_emulate_attention(const amx_attention& call, const std::byte* const* blocks, const float* q, int length,
                           uint16_t* out);

}  // namespace troupe::kernels
