// Builds the table of kernels for a set of lane operations `V` from an unnamed namespace.
#pragma once

#include "kernels/cpu/f32_attention.hpp"
#include "kernels/cpu/f32_matmul.hpp"
#include "kernels/cpu/f32_rows.hpp"
#include "kernels/cpu/lanes.hpp"

namespace troupe::kernels {

template <class V>
constexpr lane_kernels make_lane_kernels(isa set) {
  return {set,
          matmul<V>,
          rms_norm<V>,
          silu_mul<V>,
          axpy<V>,
          sigmoid<V>,
          bf16_round_row<V>,
          bf16_widen_row<V>,
          combine_row<V>,
          mla_core<V>,
          maximum<V>,
          first_equal<V>,
          sum_exp<V>,
          exp_scaled<V>,
          peak_work<V>,
          read_through<V>};
}

}  // namespace troupe::kernels
