// Finds stop strings in text that arrives in pieces.
//
// Text passes through once it cannot be the beginning of a stop string any more. The first stop
// string to be complete in the stream wins; of several that end together, the longest. The result does
// not depend on how the text was cut into pieces. One per sequence, used by one thread at a time.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/error.hpp"

namespace troupe {

class stop_matcher {
 public:
  static constexpr size_t stops_max = 16;
  static constexpr size_t stop_bytes_max = 1024;

  // Never stops.
  stop_matcher() = default;
  // Fails: invalid_argument (too many, empty, too long, or not UTF-8).
  static result<stop_matcher> make(std::vector<std::string> stops);

  struct output {
    std::string text;      // to emit now, complete characters if the input was
    bool stopped = false;  // a stop string matched: `text` ends before it, nothing follows
  };
  // Requires: `text` is valid UTF-8. After a match every call gives {"", true}.
  output push(std::string_view text);
  // The text still held back; call it when the sequence ends without a match.
  std::string flush();

  // The stop string that matched.
  const std::optional<std::string>& matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  std::optional<std::string> matched_;
};

}  // namespace troupe
