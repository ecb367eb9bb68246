// Packs a weight for the f32 kernels.
//
// Layout: header (64 bytes); for e4m3, scales FP32 [ceil(n/16)][ceil(k/128)], padded to 64 bytes; panels
// [ceil(n/16)][k][16] of the stored type. Columns beyond n are zero.
#pragma once

#include "kernels/compute.hpp"
#include "kernels/cpu/weight_reader.hpp"

namespace troupe::kernels {

// Room for a weight of this storage, zeroed.
packed_matrix empty_f32(weight_storage storage, int columns, int depth);

packed_matrix pack_f32(const weight_reader& weight);

// The product's weight fields, read back from the packed bytes.
f32_product f32_product_of(const packed_matrix& packed);

}  // namespace troupe::kernels
