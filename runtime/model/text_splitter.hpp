// Cuts text into the pieces that byte-pair merging works on.
//
// A list of regular expressions, each applied to every piece that those before it left: matches become
// pieces, and so do the gaps between them. Characters newer than PCRE2's Unicode tables (14.0 in
// 10.42) count as unassigned, also where newer engines know them. Internal to runtime/model. Read-only
// after `make`; any number of threads.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/error.hpp"

namespace troupe {

class text_splitter {
 public:
  // `patterns` in the dialect of tokenizer.json.
  // Fails: unsupported (a construct that engines disagree about, or a pattern that can match nothing),
  // malformed (not a regular expression).
  static result<text_splitter> make(std::span<const std::string> patterns);

  text_splitter(text_splitter&&) noexcept;
  text_splitter& operator=(text_splitter&&) noexcept;
  ~text_splitter();

  // The pieces of `text`, in order; together they are `text`. Requires: valid UTF-8.
  std::vector<std::string_view> split(std::string_view text) const;

 private:
  class regex;
  explicit text_splitter(std::vector<regex> stages);
  std::vector<regex> stages_;
};

}  // namespace troupe
