// The deterministic tensor generator T0 of MODEL.md 17.1, from which all its test vectors are made.
#pragma once

#include <cstdint>
#include <string_view>

namespace troupe::testing {

constexpr uint64_t fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3;
  }
  return hash;
}

// One step of SplitMix64, the additive part included.
constexpr uint64_t t0_mix(uint64_t state) {
  uint64_t z = state + 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// k of element i (flat, row-major) of tensor `name`: 0 .. 255.
constexpr int t0_k(std::string_view name, uint64_t i) { return static_cast<int>(t0_mix(fnv1a(name) + i) >> 56); }

// The 16-bit variant that the router vectors G3 to G6 use: 0 .. 65535.
constexpr int t0_k16(std::string_view name, uint64_t i) { return static_cast<int>(t0_mix(fnv1a(name) + i) >> 48); }

// The element's value, exact in BF16 and FP32. The first matching rule of MODEL.md 17.1 decides.
constexpr float t0_value(std::string_view name, uint64_t i) {
  const int k = t0_k(name, i);
  const auto contains = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  const auto centred = static_cast<float>(k - 128);
  if (contains("norm")) return static_cast<float>(96 + k / 4) / 128;
  if (name.ends_with("e_score_correction_bias")) return centred / 512;
  if (contains("embed_tokens") || name == "lm_head.weight" || contains("shared_head.head")) return centred / 128;
  if (contains(".gate.weight")) return centred / 256;
  return centred / 512;
}

}  // namespace troupe::testing
