#include "kernels/cpu/amx_coding.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

namespace troupe::kernels {
namespace {

// Where element `at` of a tile's line `line` of lower bytes lies in the tile.
constexpr int line_position(int line, int at) { return line * 2 * tile_depth + position_in_pair(at); }

// Where lower bytes of line `line` begin in a coded tile, and the codes that go with them.
constexpr int lower_offset(int line) { return line / 2 * coded_group_bytes + 64 + line % 2 * 64; }
constexpr int code_offset(int line) { return line / 2 * coded_group_bytes; }

}  // namespace

upper_byte_table upper_byte_table::of(const std::array<uint32_t, 256>& counts) {
  std::array<uint8_t, 256> order;
  std::iota(order.begin(), order.end(), uint8_t{0});
  std::stable_sort(order.begin(), order.end(), [&](uint8_t a, uint8_t b) { return counts[a] > counts[b]; });
  upper_byte_table table;
  std::copy_n(order.begin(), upper_bytes, table.upper.begin());
  const auto positive = [](uint8_t byte) { return byte < 0x80; };
  if (std::none_of(table.upper.begin(), table.upper.end(), positive)) table.upper.back() = 0;
  table.code_of.fill(no_code);
  for (size_t code = 0; code < table.upper.size(); ++code)
    table.code_of[table.upper[code]] = static_cast<uint8_t>(code);
  return table;
}

uint16_t upper_byte_table::padding() const {
  return static_cast<uint16_t>(*std::min_element(upper.begin(), upper.end()) << 8);
}

void code_tile(const upper_byte_table& table, const uint16_t* tile, std::byte* out, tile_misses& misses) {
  for (int line = 0; line < 8; ++line) {
    std::byte* lower = out + lower_offset(line);
    std::byte* codes = out + code_offset(line);
    uint64_t missed = 0;
    for (int i = 0; i < 64; ++i) {
      const uint16_t element = tile[line_position(line, i)];
      lower[i] = static_cast<std::byte>(element & 0xff);
      const uint8_t code = table.code_of[element >> 8];
      missed |= static_cast<uint64_t>(code >> 7) << i;
      const auto kept = static_cast<std::byte>(code & 0xf);
      codes[i] = line % 2 == 0 ? kept : codes[i] | kept << 4;
    }
    misses[static_cast<size_t>(line)] = missed;
  }
}

bool note_exceptions(const uint16_t* tile, int step, const tile_misses& misses, uint32_t*& next, const uint32_t* end) {
  for (int line = 0; line < 8; ++line)
    for (uint64_t left = misses[static_cast<size_t>(line)]; left != 0; left &= left - 1) {
      if (next == end) return false;
      const int position = line_position(line, std::countr_zero(left));
      *next++ = exception_word(step, position, static_cast<uint8_t>(tile[position] >> 8));
    }
  return true;
}

void decode_coded_tile(const uint8_t* upper, const std::byte* coded, uint16_t* tile) {
  for (int line = 0; line < 8; ++line)
    for (int i = 0; i < 64; ++i) {
      const auto codes = std::to_integer<unsigned>(coded[code_offset(line) + i]);
      const unsigned code = line % 2 == 0 ? codes & 0xf : codes >> 4;
      tile[line_position(line, i)] =
          static_cast<uint16_t>(upper[code] << 8 | std::to_integer<unsigned>(coded[lower_offset(line) + i]));
    }
}

}  // namespace troupe::kernels
