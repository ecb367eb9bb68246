// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
#include "kernels/compute.hpp"

namespace troupe::kernels {

void philox4x32(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]) {
  constexpr uint64_t multiplier_0 = 0xD2511F53, multiplier_1 = 0xCD9E8D57;
  constexpr uint32_t weyl_0 = 0x9E3779B9, weyl_1 = 0xBB67AE85;
  constexpr int rounds = 10;
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
  uint32_t k0 = key[0], k1 = key[1];
  for (int round = 0; round < rounds; ++round) {
    const uint64_t product_0 = multiplier_0 * c0;
    const uint64_t product_1 = multiplier_1 * c2;
    c0 = static_cast<uint32_t>(product_1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(product_0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(product_1);
    c3 = static_cast<uint32_t>(product_0);
    k0 += weyl_0;
    k1 += weyl_1;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

}  // namespace troupe::kernels
