// Regular expressions of tokenizer.json, from their dialect to PCRE2's.
//
// tokenizer.json is written for Oniguruma with Ruby's syntax. Most of it means the same in PCRE2; this
// translates what differs and can be expressed (\s), and refuses the rest rather than cut text
// differently than the model was trained on. Internal to runtime/model. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

#include "runtime/error.hpp"

namespace troupe {

inline constexpr size_t pattern_bytes_max = 16384;

// A pattern for PCRE2 with UTF, UCP and MULTILINE. Whether it is well-formed is left to PCRE2.
// Fails: unsupported (the sentence names the construct).
result<std::string> to_pcre2(std::string_view pattern);

}  // namespace troupe
