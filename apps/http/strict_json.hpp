// JSON from a stranger, made safe to look at.
//
// Beyond what RFC 8259 asks: nesting is bounded (a deep value would overflow the stack of whatever
// walks it) and an object that repeats a name is refused (two readers would see two requests).
// Ill-formed UTF-8 is refused too, in and out of strings. Pure functions; any thread.
#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>

namespace troupe::http {

inline constexpr size_t json_depth_max = 32;

// Fails: with a sentence that says what is wrong and at which byte.
std::variant<nlohmann::json, std::string> parse_strict_json(std::string_view text);

// The value as text. Ill-formed UTF-8, which only a bug of ours could bring here, becomes U+FFFD
// instead of an exception.
std::string dump(const nlohmann::ordered_json& value);

}  // namespace troupe::http
