// Profile amx_bf16 in the CPU's tile registers.
#include "kernels/cpu/amx_hardware_tiles.hpp"
#include "kernels/cpu/amx_table.hpp"

namespace troupe::kernels {

const amx_kernels& hardware_tile_kernels() {
  static constexpr amx_kernels table = make_amx_kernels<hardware_tiles>(tiles::hardware);
  return table;
}

}  // namespace troupe::kernels
