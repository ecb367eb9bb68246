#include "runtime/model/utf8.hpp"

namespace troupe {

namespace {

// What may follow a first byte: how many bytes, and the range of the second (Unicode, table 3-7). The
// narrowed ranges exclude overlong forms, surrogates and values above U+10FFFF.
struct sequence {
  int bytes = 0;  // 0: not a first byte
  uint8_t second_least = 0x80;
  uint8_t second_most = 0xBF;
};

sequence sequence_of(uint8_t first) {
  if (first < 0x80) return {1};
  if (first < 0xC2) return {0};
  if (first < 0xE0) return {2};
  if (first == 0xE0) return {3, 0xA0, 0xBF};
  if (first == 0xED) return {3, 0x80, 0x9F};
  if (first < 0xF0) return {3};
  if (first == 0xF0) return {4, 0x90, 0xBF};
  if (first < 0xF4) return {4};
  if (first == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

}  // namespace

utf8_step utf8_next(std::string_view text) {
  const sequence wanted = sequence_of(static_cast<uint8_t>(text[0]));
  if (wanted.bytes == 0) return {utf8_kind::wrong, 1};
  const auto length = static_cast<size_t>(wanted.bytes);
  for (size_t at = 1; at < length; ++at) {
    if (at == text.size()) return {utf8_kind::incomplete, at};
    const auto byte = static_cast<uint8_t>(text[at]);
    const uint8_t least = at == 1 ? wanted.second_least : 0x80;
    const uint8_t most = at == 1 ? wanted.second_most : 0xBF;
    if (byte < least || byte > most) return {utf8_kind::wrong, at};
  }
  return {utf8_kind::character, length};
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const utf8_step step = utf8_next(text);
    if (step.kind != utf8_kind::character) return false;
    text.remove_prefix(step.bytes);
  }
  return true;
}

std::string repair_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const utf8_step step = utf8_next(text);
    out += step.kind == utf8_kind::character ? text.substr(0, step.bytes) : replacement_character;
    text.remove_prefix(step.bytes);
  }
  return out;
}

}  // namespace troupe
