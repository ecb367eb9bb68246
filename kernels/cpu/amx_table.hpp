// Builds the table of profile amx_bf16's kernels for tile registers `T` from an unnamed namespace.
#pragma once

#include "kernels/cpu/amx_attend.hpp"
#include "kernels/cpu/amx_kernels.hpp"
#include "kernels/cpu/amx_products.hpp"

namespace troupe::kernels {
namespace {

template <class T>
constexpr amx_kernels make_amx_kernels(tiles kind) {
  return {kind,          T::chained,          amx_input_row<T>,      amx_input_row<T>,
          amx_matmul<T>, amx_matmul_apart<T>, amx_gated_matmul<T>,   amx_latents<T>,
          amx_query<T>,  amx_query<T>,        amx_attention_scratch, amx_attend_span<T>,
          amx_merge<T>,  amx_attended<T>,     amx_peak_work<T>};
}

}  // namespace
}  // namespace troupe::kernels
