// Tokens to text while they are generated.
//
// A token may end inside a character; the detokeniser holds such bytes back until the character is
// complete, so that every piece of text is valid UTF-8. What it emits over a whole sequence equals
// `tokenizer::decode` of it. One per sequence, used by one thread at a time.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/model/tokenizer.hpp"

namespace troupe {

class detokeniser {
 public:
  // `source` outlives the detokeniser.
  explicit detokeniser(const tokenizer& source, bool skip_special = true)
      : source_(&source), skip_special_(skip_special) {}

  // The text that token `id` completes; may be empty.
  std::string push(int32_t id);
  // The rest at the end of the sequence: an incomplete character becomes U+FFFD.
  std::string flush();

 private:
  const tokenizer* source_;
  std::string pending_;  // the beginning of a character, at most 3 bytes
  bool skip_special_;
};

}  // namespace troupe
