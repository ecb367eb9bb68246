// The matrix product of profile amx_bf16 in AMX tiles.
//
// x is rounded to BF16. BF16 weights accumulate in one FP32 tile over all of k, 32 inputs an instruction,
// ascending. FP8 weights are decoded exactly to BF16; each 128 inputs accumulate in a tile from zero, and then
// y = fma(scale, partial, y) in FP32, so that scales are never rounded. One kernel for every number of rows: a
// ragged last tile is padded with rows of zeros.
#pragma once

#include "kernels/cpu/amx_layout.hpp"

namespace troupe::kernels {

// Requires: cpu_features::detect().amx_bf16. Configures the calling thread's tiles on its first use.
void amx_matmul(const amx_product& call);

size_t amx_scratch_bytes(int m, int k);

// Configures the calling thread's tiles, once.
void amx_prepare_thread();

}  // namespace troupe::kernels
