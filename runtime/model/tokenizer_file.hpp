// tokenizer.json and tokenizer_config.json, read into the parts a tokenizer is made of.
//
// Internal to runtime/model. Accepts byte-level BPE with regular-expression splits and refuses every
// other component by name, so that no text is ever cut in another way than the file says. Pure; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/error.hpp"
#include "runtime/model/added_tokens.hpp"
#include "runtime/model/byte_pairs.hpp"

namespace troupe {

struct token_entry {
  std::string bytes;     // empty: no token has this id
  bool special = false;  // the flag in the file
  bool added = false;
};

struct tokenizer_file {
  std::vector<token_entry> tokens;    // by id
  std::vector<std::string> patterns;  // splits, in order, in the file's dialect
  byte_pairs pairs;
  added_tokens added;
};

struct tokenizer_settings {
  std::optional<std::string> bos;  // the token's text
  std::optional<std::string> eos;
  bool add_bos = false;
};

// Fails: malformed, unsupported; a sentence.
result<tokenizer_file> parse_tokenizer_file(std::string_view json);
// Empty text gives the defaults. Fails: malformed; a sentence.
result<tokenizer_settings> parse_tokenizer_settings(std::string_view json);

}  // namespace troupe
