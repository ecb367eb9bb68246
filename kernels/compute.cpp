// Chooses the code for a profile on this CPU.
#include "kernels/compute.hpp"

#include "kernels/check.hpp"
#include "kernels/cpu/amx_compute.hpp"
#include "kernels/cpu/f32_compute.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace troupe::kernels {

std::unique_ptr<compute> compute::make(profile wanted) {
  if (wanted == profile::amx_bf16) {
    const cpu_features& cpu = cpu_features::detect();
    require(cpu.amx_bf16(), "this CPU or its kernel has neither AMX nor AVX-512 with BF16 products");
    return make_amx(cpu.hardware_tiles ? tiles::hardware : tiles::vector);
  }
  return std::make_unique<f32_compute>(best_lanes());
}

std::unique_ptr<compute> compute::make_f32(isa wanted) {
  const cpu_features& cpu = cpu_features::detect();
  require(wanted != isa::avx2 || cpu.avx2, "this CPU has no AVX2");
  require(wanted != isa::avx512 || cpu.avx512, "this CPU has no AVX-512");
  return std::make_unique<f32_compute>(lanes_of(wanted));
}

std::unique_ptr<compute> compute::make_amx(tiles wanted) {
  const cpu_features& cpu = cpu_features::detect();
  require(wanted != tiles::hardware || cpu.hardware_tiles, "this CPU or its kernel has no AMX BF16");
  require(wanted != tiles::vector || cpu.vector_tiles, "this CPU has no AVX-512 with BF16 products");
  return std::make_unique<amx_compute>(kernels_of(wanted));
}

void prepare_thread() {
#if defined(__x86_64__)
  // All exceptions masked, round to nearest, no flush to zero, denormals are numbers.
  _mm_setcsr(0x1f80);
#endif
}

}  // namespace troupe::kernels
