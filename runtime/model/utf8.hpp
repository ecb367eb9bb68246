// UTF-8, checked byte by byte.
//
// Wrong input follows one rule everywhere (Unicode's "maximal subpart", as browsers do): the longest
// beginning of a possible character, or else one byte, becomes one U+FFFD. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace troupe {

inline constexpr std::string_view replacement_character = "\xEF\xBF\xBD";  // U+FFFD

enum class utf8_kind : uint8_t {
  character,   // a whole character
  incomplete,  // the text ends inside a character that is right so far
  wrong,       // no character begins like this
};

struct utf8_step {
  utf8_kind kind = utf8_kind::character;
  size_t bytes = 0;  // how many belong to it, at least 1
};

// What begins at text[0]. Requires: text is not empty.
utf8_step utf8_next(std::string_view text);

bool is_utf8(std::string_view text);

// A copy with everything that is not UTF-8 replaced by U+FFFD.
std::string repair_utf8(std::string_view text);

}  // namespace troupe
