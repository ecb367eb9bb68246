// Profile amx_bf16 with AVX-512 and its BF16 products.
#include "kernels/cpu/amx_table.hpp"
#include "kernels/cpu/amx_vector_tiles.hpp"

namespace troupe::kernels {

const amx_kernels& vector_tile_kernels() {
  static constexpr amx_kernels table = make_amx_kernels<vector_tiles>(tiles::vector);
  return table;
}

}  // namespace troupe::kernels
