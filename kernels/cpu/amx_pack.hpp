// Packs a weight for profile amx_bf16 (layout: cpu/amx_layout.hpp). FP32 weights are rounded to BF16, and BF16 is coded
// unless too many elements are exceptions.
#pragma once

#include <optional>

#include "kernels/compute.hpp"
#include "kernels/cpu/amx_layout.hpp"
#include "kernels/cpu/weight_reader.hpp"

namespace troupe::kernels {

// How a weight is kept, which packed_parts::storage names by one number.
struct amx_storage {
  weight_storage kind = weight_storage::bf16;  // bf16, bf16_coded or e4m3
  bool chained = false;                        // the order of inputs

  uint32_t number() const { return static_cast<uint32_t>(kind) | (chained ? chained_bit : 0); }
  // Nothing for a number that names none.
  static std::optional<amx_storage> of(uint32_t number);

 private:
  static constexpr uint32_t chained_bit = 0x100;
};

// Room for a weight, zeroed.
packed_matrix empty_amx(const amx_storage& storage, int columns, int depth);

packed_matrix pack_amx(const weight_reader& weight, bool chained);

// The product's weight fields, read back from the packed bytes.
amx_product amx_product_of(const packed_matrix& packed);

}  // namespace troupe::kernels
