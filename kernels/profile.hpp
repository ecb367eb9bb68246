// Numeric profiles and what this CPU can do.
//
// A profile names every rounding and every order of summation; all nodes of a cluster run one.
// `f32` computes in FP32 with one order of summation, so that the plain reference, AVX2 and AVX-512
// agree in every bit. `amx_bf16` multiplies BF16 operands as AMX tiles do, for every number of rows; AVX-512 with BF16
// products agrees with the tiles in every bit.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace troupe::kernels {

enum class profile : uint8_t { f32, amx_bf16 };

// Which code runs profile `f32`. All give the same bits.
enum class isa : uint8_t { scalar, avx2, avx512 };

// Which code runs profile `amx_bf16`. Both give the same bits.
enum class tiles : uint8_t { hardware, vector };

struct cpu_features {
  bool avx2 = false;            // with FMA and F16C
  bool avx512 = false;          // F, BW, DQ, VL
  bool hardware_tiles = false;  // AMX with BF16, and the kernel granted tile permission to this process
  bool vector_tiles = false;    // AVX512_BF16, VBMI, GFNI

  // Whether profile amx_bf16 can run.
  bool amx_bf16() const { return hardware_tiles || vector_tiles; }

  // Looks once (asks the kernel for tile permission) and remembers. Any thread.
  static const cpu_features& detect();
};

std::string_view name(profile value);
std::string_view name(isa value);
std::optional<profile> profile_from_name(std::string_view text);

// The fastest that this CPU can run.
profile best_profile();

}  // namespace troupe::kernels
