// Profile f32 with AVX-512.
#include "kernels/cpu/avx512_lanes.hpp"
#include "kernels/cpu/f32_table.hpp"

namespace troupe::kernels {

const lane_kernels& avx512_lanes() {
  static constexpr lane_kernels table = make_lane_kernels<avx512>(isa::avx512);
  return table;
}

}  // namespace troupe::kernels
