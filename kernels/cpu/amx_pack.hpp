// Packs a weight for profile amx_bf16 (layout: cpu/amx_layout.hpp). FP32 weights are rounded to BF16, and BF16 is coded
// unless too many elements are exceptions.
#pragma once

#include "kernels/compute.hpp"
#include "kernels/cpu/amx_layout.hpp"
#include "kernels/cpu/weight_reader.hpp"

namespace troupe::kernels {

// Room for a weight of this storage (bf16, bf16_coded or e4m3), zeroed.
packed_matrix empty_amx(weight_storage storage, int columns, int depth);

packed_matrix pack_amx(const weight_reader& weight);

// The product's weight fields, read back from the packed bytes.
amx_product amx_product_of(const packed_matrix& packed);

}  // namespace troupe::kernels
