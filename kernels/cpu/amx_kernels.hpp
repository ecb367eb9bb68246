// The kernels of profile amx_bf16 as a table of functions, one table for the tile registers of the CPU and one for
// vector registers (amx_vector_tiles.hpp). Both give the same bits. As in lanes.hpp, only plain pointers cross this
// boundary.
#pragma once

#include "kernels/cpu/amx_attention.hpp"
#include "kernels/profile.hpp"

namespace troupe::kernels {

struct amx_kernels {
  tiles kind;
  bool chained;  // the order of inputs that it multiplies
  // Makes x [k] row `row` of an input.
  void (*input_row_f32)(const float* x, int row, int k, uint16_t* input);
  void (*input_row_bf16)(const uint16_t* x, int row, int k, uint16_t* input);
  // y [m, n] FP32, row stride ldy.
  void (*matmul)(const amx_product& call, float* y, int64_t ldy);
  // Column j of row i is element j of rows[i], FP32 or BF16. Returns false when a value is NaN or infinite.
  bool (*matmul_apart)(const amx_product& call, bool bf16, std::byte* const* rows);
  // silu(gate) * up of two products of one input, as input tiles of width n. Requires: columns in multiples of 32.
  void (*gated_matmul)(const amx_product& gate, const amx_product& up, uint16_t* out);
  // 32 values of a latent row for a KV block, rounded, of which the first `count` are there and the others zero.
  void (*latents)(const float* x, int count, uint16_t* out);
  // Makes unit `unit`'s queries of q [heads, rk + dr].
  void (*query_f32)(const amx_attention& call, const float* q, int unit, uint16_t* out);
  void (*query_bf16)(const amx_attention& call, const uint16_t* q, int unit, uint16_t* out);
  // 64-byte aligned working memory of attend_span.
  size_t (*attention_scratch)();
  // The results of at most `units_together` units of one sequence over span `span`, merged into what earlier spans left
  // if `merge`. Every length reaches beyond the span's start. `blocks` are the sequence's. Meanwhile span `next` is
  // fetched into the second-level cache, unless it is negative.
  void (*attend_span)(const amx_attention& call, const std::byte* const* blocks, const amx_attention_unit* units,
                      int count, int span, int next, bool merge, std::byte* scratch);
  // Merges partial results [merged, spans) of a unit, `stride` floats apart, into the first one, which holds those
  // before, and makes its attended rows [heads of the unit][rk] BF16; of both, only the latents `steps`, which others
  // do not touch.
  void (*merge)(const amx_attention& call, float* partials, ptrdiff_t stride, int merged, int spans, int unit,
                const step_range& steps, uint16_t* out);
  // Rows [heads of the unit][rk] BF16 from a unit's result over all spans.
  void (*attended)(const amx_attention& call, const float* result, int unit, uint16_t* out);
  // Tile products of registers alone; returns their operations.
  double (*peak_work)(int rounds);
};

const amx_kernels& hardware_tile_kernels();  // Requires: the CPU has AMX with BF16, and the process may use it.
const amx_kernels& vector_tile_kernels();    // Requires: the CPU has AVX512_BF16, VBMI and GFNI.
const amx_kernels& kernels_of(tiles kind);

}  // namespace troupe::kernels
