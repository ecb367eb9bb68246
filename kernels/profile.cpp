#include "kernels/profile.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace troupe::kernels {
namespace {

#if defined(__x86_64__)

struct cpuid_words {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

cpuid_words cpuid(unsigned leaf, unsigned subleaf) {
  cpuid_words words;
  __get_cpuid_count(leaf, subleaf, &words.eax, &words.ebx, &words.ecx, &words.edx);
  return words;
}

constexpr bool has(unsigned word, int bit) { return (word >> bit) & 1U; }

// Which register states the operating system saves (XCR0). An instruction set is usable only if its
// registers survive a context switch.
uint64_t saved_states() {
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

// Tile data is large, so Linux hands it out only to processes that ask.
bool request_tile_permission() {
  constexpr long request_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long tile_data = 18;
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

cpu_features look() {
  cpu_features found;
  const cpuid_words basic = cpuid(1, 0);
  const bool os_saves = has(basic.ecx, 27);
  if (!os_saves) return found;
  const uint64_t states = saved_states();
  const bool ymm = (states & 0x6) == 0x6;
  const bool zmm = (states & 0xe6) == 0xe6;
  const bool tile_states = (states & 0x60000) == 0x60000;
  const cpuid_words extended = cpuid(7, 0);
  const bool fma = has(basic.ecx, 12);
  const bool f16c = has(basic.ecx, 29);
  found.avx2 = ymm && fma && f16c && has(extended.ebx, 5);
  const bool f = has(extended.ebx, 16), dq = has(extended.ebx, 17);
  const bool bw = has(extended.ebx, 30), vl = has(extended.ebx, 31);
  found.avx512 = found.avx2 && zmm && f && dq && bw && vl;
  // The decoders beside the tiles permute bytes (VBMI) and bits (GFNI); every CPU with AMX has both.
  const bool decoders = found.avx512 && has(extended.ecx, 1) && has(extended.ecx, 8);
  const bool amx = has(extended.edx, 22) && has(extended.edx, 24);  // BF16 and TILE
  found.hardware_tiles = decoders && tile_states && amx && request_tile_permission();
  found.vector_tiles = decoders && extended.eax >= 1 && has(cpuid(7, 1).eax, 5);  // AVX512_BF16
  return found;
}

#else

cpu_features look() { return {}; }

#endif

}  // namespace

const cpu_features& cpu_features::detect() {
  static const cpu_features features = look();
  return features;
}

profile best_profile() { return cpu_features::detect().amx_bf16() ? profile::amx_bf16 : profile::f32; }

std::string_view name(profile value) { return value == profile::f32 ? "f32" : "amx_bf16"; }

std::string_view name(isa value) {
  switch (value) {
    case isa::scalar: return "scalar";
    case isa::avx2: return "avx2";
    case isa::avx512: return "avx512";
  }
  return "unknown";
}

std::optional<profile> profile_from_name(std::string_view text) {
  if (text == "f32") return profile::f32;
  if (text == "amx_bf16") return profile::amx_bf16;
  return std::nullopt;
}

}  // namespace troupe::kernels
