#include "kernels/cpu/lanes.hpp"

namespace troupe::kernels {

const lane_kernels& lanes_of(isa set) {
  switch (set) {
    case isa::avx512: return avx512_lanes();
    case isa::avx2: return avx2_lanes();
    case isa::scalar: break;
  }
  return scalar_lanes();
}

const lane_kernels& best_lanes() {
  const cpu_features& cpu = cpu_features::detect();
  return lanes_of(cpu.avx512 ? isa::avx512 : cpu.avx2 ? isa::avx2 : isa::scalar);
}

}  // namespace troupe::kernels
