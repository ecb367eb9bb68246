// Codes BF16 tiles in 12 bits an element and back (layout: cpu/amx_layout.hpp), in plain C++ but for one function.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/cpu/amx_layout.hpp"

namespace troupe::kernels {

// The upper bytes that a weight's codes stand for.
struct upper_byte_table {
  static constexpr uint8_t no_code = 0x80;

  std::array<uint8_t, upper_bytes> upper{};  // by code; those that stand for most elements
  std::array<uint8_t, 256> code_of{};        // or no_code

  // Of a weight whose sample has upper byte i `counts[i]` times.
  static upper_byte_table of(const std::array<uint32_t, 256>& counts);
  // A positive number whose upper byte has a code.
  uint16_t padding() const;
};

// Elements of a coded tile that have no code: bit i of line l is element i of its l-th line of lower bytes.
using tile_misses = std::array<uint64_t, 8>;

// tile [512] BF16 in tile order, 64-byte aligned like `out` [768 bytes]. An element without a code gets code 0.
void code_tile(const upper_byte_table& table, const uint16_t* tile, std::byte* out, tile_misses& misses);
// The same. Requires: cpu_features::detect().amx_bf16().
void code_tile_avx512(const upper_byte_table& table, const uint16_t* tile, std::byte* out, tile_misses& misses);

// Puts the exceptions of one step's tile where `next` points and moves it on; false where `end` leaves no room.
bool note_exceptions(const uint16_t* tile, int step, const tile_misses& misses, uint32_t*& next, const uint32_t* end);

// All of a tile but its exceptions. upper [16].
void decode_coded_tile(const uint8_t* upper, const std::byte* coded, uint16_t* tile);

}  // namespace troupe::kernels
