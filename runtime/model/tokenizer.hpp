// Byte-level BPE as tokenizer.json describes it (MODEL.md 12).
//
// Text becomes added tokens and, between them, pieces cut by the file's regular expressions; each
// piece is merged from bytes. Made once per model, then read: every const function may be called
// from any number of threads at the same time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/error.hpp"

namespace troupe {

struct encode_options {
  // Recognise added tokens ("<｜User｜>") in the text. False for what users write: it then encodes as
  // ordinary text and cannot become a control token.
  bool parse_added = true;
  // Put BOS first if the model wants one (`add_bos`). False for text that already starts with it.
  bool add_bos = false;
};

class tokenizer {
 public:
  // Reads tokenizer.json and, if present, tokenizer_config.json of a model directory.
  // Fails: not_found, malformed, or unsupported (a component this runtime lacks; the sentence names it).
  static result<tokenizer> load(const std::filesystem::path& directory);
  // The same from text; `config_json` may be empty. Fails: malformed, unsupported.
  static result<tokenizer> parse(std::string_view tokenizer_json, std::string_view config_json);

  tokenizer(tokenizer&&) noexcept;
  tokenizer& operator=(tokenizer&&) noexcept;
  ~tokenizer();

  // The ids of `text`. Bytes that are not UTF-8 count as U+FFFD.
  std::vector<int32_t> encode(std::string_view text, encode_options options = {}) const;
  // The text of `ids`: always valid UTF-8, wrong bytes as U+FFFD, ids without a token as nothing.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // The bytes a token stands for (perhaps part of a character); empty for ids without a token.
  std::string_view token_bytes(int32_t id) const;
  // Flagged special in the file: BOS, EOS, padding. Role and tool markers are not.
  bool is_special(int32_t id) const;
  // Any added token, markers included.
  bool is_added(int32_t id) const;
  // The id of the added token with this text.
  std::optional<int32_t> find_added(std::string_view text) const;

  int32_t size() const;  // one more than the largest id
  std::optional<int32_t> bos() const;
  std::optional<int32_t> eos() const;
  bool add_bos() const;

 private:
  struct contents;
  explicit tokenizer(std::unique_ptr<const contents> held);
  std::unique_ptr<const contents> held_;
};

}  // namespace troupe
