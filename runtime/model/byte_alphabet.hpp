// How tokenizer.json writes bytes as characters.
//
// Printable bytes stand for themselves; the 68 others are U+0100 .. U+0143 in ascending order
// (MODEL.md 12.2). Internal to runtime/model. Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace troupe {

// The bytes that a vocabulary key stands for, or nothing if it uses a character outside the alphabet.
std::optional<std::string> bytes_of_key(std::string_view key);

}  // namespace troupe
