// The matrix products of profile amx_bf16 in AMX tiles.
//
// Inputs are BF16. BF16 weights, coded or not, accumulate in one FP32 tile over all of k, 32 inputs an instruction,
// ascending. FP8 weights are decoded exactly to BF16; each 128 inputs accumulate in a tile from zero, and then y =
// fma(scale, partial, y) in FP32, so that scales are never rounded. One kernel for every number of rows: the last tile
// of rows is computed whole and what does not exist is dropped.
#pragma once

#include "kernels/cpu/amx_layout.hpp"

// Requires, for all: cpu_features::detect().amx_bf16. They configure the calling thread's tiles on its first use.
namespace troupe::kernels {

// Makes x [k] row `row` of an input.
void amx_input_row(const float* x, int row, int k, uint16_t* input);
void amx_input_row(const uint16_t* x, int row, int k, uint16_t* input);

// y [m, n] FP32, row stride ldy.
void amx_matmul(const amx_product& call, float* y, int64_t ldy);

// Column j of row i is element j of rows[i], FP32 or BF16. Returns false when a value is NaN or infinite.
bool amx_matmul_apart(const amx_product& call, bool bf16, std::byte* const* rows);

// silu(gate) * up of two products of one input, as input tiles of width n. Requires: columns in multiples of 32.
void amx_gated_matmul(const amx_product& gate, const amx_product& up, uint16_t* out);

// Tile products of registers alone; returns their operations.
double amx_peak_work(int rounds);

// Configures the calling thread's tiles, once.
void amx_prepare_thread();

}  // namespace troupe::kernels
