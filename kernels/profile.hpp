// Numeric profiles and what this CPU can do.
//
// A profile names every rounding and every order of summation; all nodes of a cluster run one.
// `f32` computes in FP32 with one order of summation, so that the plain reference, AVX2 and AVX-512
// agree in every bit. `amx_bf16` multiplies BF16 operands in AMX tiles for every number of rows.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace troupe::kernels {

enum class profile : uint8_t { f32, amx_bf16 };

// Which code runs profile `f32`. All give the same bits.
enum class isa : uint8_t { scalar, avx2, avx512 };

struct cpu_features {
  bool avx2 = false;      // with FMA and F16C
  bool avx512 = false;    // F, BW, DQ, VL
  bool amx_bf16 = false;  // and the kernel granted tile permission to this process

  // Looks once (asks the kernel for tile permission) and remembers. Any thread.
  static const cpu_features& detect();
};

std::string_view name(profile value);
std::string_view name(isa value);
std::optional<profile> profile_from_name(std::string_view text);

}  // namespace troupe::kernels
