// Byte-pair merging: from the bytes of a piece to token ids.
//
// Starts with one token a byte and merges the adjacent pair of lowest rank, leftmost first, until no
// pair has a rank (MODEL.md 12.2). Internal to runtime/model. Read-only once filled; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace troupe {

class byte_pairs {
 public:
  static constexpr uint32_t no_rank = UINT32_MAX;
  struct merge {
    uint32_t rank = no_rank;  // lower merges first
    int32_t id = -1;          // what the pair becomes
  };

  // `byte_ids`: the token of each byte. `merge_count` merges may be added.
  byte_pairs(const std::array<int32_t, 256>& byte_ids, size_t merge_count);

  // False if the pair has a merge already. Requires: at most `merge_count` calls.
  bool add(int32_t left, int32_t right, merge made);

  // Appends the ids of `piece` to `ids`. Time: n log n in its bytes.
  void encode(std::string_view piece, std::vector<int32_t>& ids) const;

 private:
  struct slot {
    uint64_t pair = UINT64_MAX;  // left << 32 | right
    merge made;
  };
  // Up to here scanning for the lowest rank beats keeping a heap.
  static constexpr size_t scanned_bytes_max = 48;

  const slot& slot_of(uint64_t pair) const;
  merge find(int32_t left, int32_t right) const;
  void encode_short(std::string_view piece, std::vector<int32_t>& ids) const;
  void encode_long(std::string_view piece, std::vector<int32_t>& ids) const;

  std::array<int32_t, 256> byte_ids_;
  std::vector<slot> slots_;  // open addressing, a power of two, at most half full
};

}  // namespace troupe
