// Profile amx_bf16's matrix product in plain C++: the reference for the tiles' bits, on any machine, slowly.
#pragma once

#include "kernels/cpu/amx_layout.hpp"

namespace troupe::kernels {

// As amx_matmul; needs no scratch.
void amx_emulate(const amx_product& call);

}  // namespace troupe::kernels
