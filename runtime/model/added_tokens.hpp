// Tokens that are found in raw text before anything else ("<｜User｜>").
//
// A trie of their bytes; the leftmost match wins and, where several begin, the longest. Internal to
// runtime/model. Read-only once filled; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace troupe {

class added_tokens {
 public:
  static constexpr size_t content_bytes_max = 1024;

  // False if the content is there already. Requires: `content` is not empty.
  bool add(std::string_view content, int32_t id);

  struct match {
    size_t begin = 0;
    size_t end = 0;
    int32_t id = 0;
  };
  // The first match that begins at or after `from`.
  std::optional<match> find(std::string_view text, size_t from) const;
  // The token whose content is exactly `content`.
  std::optional<int32_t> id_of(std::string_view content) const;

 private:
  static constexpr uint32_t root = 0;
  // Where the edge `byte` of `node` leads; `root` if nowhere.
  uint32_t follow(uint32_t node, char byte) const;

  std::vector<int32_t> ids_ = {-1};               // of each node; -1: no token ends there
  std::unordered_map<uint64_t, uint32_t> edges_;  // node << 8 | byte -> node
  std::array<bool, 256> begins_ = {};             // bytes with which some token begins
};

}  // namespace troupe
