#include "runtime/model/byte_alphabet.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/model/utf8.hpp"

namespace troupe {

namespace {

bool is_plain_byte(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

// Code point -> byte, -1 where the byte alphabet has none. Printable bytes stand for themselves; the
// others follow from U+0100 in ascending order.
std::array<int16_t, 0x144> make_byte_alphabet() {
  std::array<int16_t, 0x144> bytes;
  bytes.fill(-1);
  size_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte)
    bytes[is_plain_byte(byte) ? static_cast<size_t>(byte) : next++] = static_cast<int16_t>(byte);
  return bytes;
}

}  // namespace

std::optional<std::string> bytes_of_key(std::string_view key) {
  static const std::array<int16_t, 0x144> alphabet = make_byte_alphabet();
  std::string bytes;
  while (!key.empty()) {
    const utf8_step step = utf8_next(key);
    if (step.kind != utf8_kind::character || step.bytes > 2) return std::nullopt;
    const auto first = static_cast<uint8_t>(key[0]);
    const size_t point = step.bytes == 1 ? first : (first & 0x1FU) << 6 | (static_cast<uint8_t>(key[1]) & 0x3FU);
    if (point >= alphabet.size() || alphabet[point] < 0) return std::nullopt;
    bytes += static_cast<char>(alphabet[point]);
    key.remove_prefix(step.bytes);
  }
  return bytes;
}

}  // namespace troupe
