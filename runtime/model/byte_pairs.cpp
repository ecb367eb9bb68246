#include "runtime/model/byte_pairs.hpp"

#include <bit>
#include <queue>

namespace troupe {

namespace {

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// One token of a long piece, in a list of those still there.
struct link {
  int32_t id = 0;
  int32_t previous = -1;
  int32_t next = -1;
  uint32_t version = 0;  // counts changes, so that candidates in the heap can be known as stale
};

struct candidate {
  byte_pairs::merge made;
  int32_t left = 0;
  uint32_t left_version = 0;
  uint32_t right_version = 0;
  // For a heap whose top is the lowest rank, then the leftmost.
  bool operator<(const candidate& other) const {
    return made.rank != other.made.rank ? made.rank > other.made.rank : left > other.left;
  }
};

}  // namespace

byte_pairs::byte_pairs(const std::array<int32_t, 256>& byte_ids, size_t merge_count)
    : byte_ids_(byte_ids), slots_(std::bit_ceil(merge_count * 2 + 2)) {}

const byte_pairs::slot& byte_pairs::slot_of(uint64_t pair) const {
  const size_t mask = slots_.size() - 1;
  // Multiplying by an odd constant (2^64 over the golden ratio) spreads neighbouring ids; the high
  // half of the product is the well-mixed one.
  size_t at = (pair * 0x9E3779B97F4A7C15U >> 32) & mask;
  while (slots_[at].pair != pair && slots_[at].pair != UINT64_MAX) at = (at + 1) & mask;
  return slots_[at];
}

bool byte_pairs::add(int32_t left, int32_t right, merge made) {
  const uint64_t pair = pair_of(left, right);
  slot& target = slots_[static_cast<size_t>(&slot_of(pair) - slots_.data())];
  if (target.pair == pair) return false;
  target = {pair, made};
  return true;
}

byte_pairs::merge byte_pairs::find(int32_t left, int32_t right) const { return slot_of(pair_of(left, right)).made; }

void byte_pairs::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  if (piece.size() == 1) {
    ids.push_back(byte_ids_[static_cast<uint8_t>(piece[0])]);
  } else if (piece.size() <= scanned_bytes_max) {
    encode_short(piece, ids);
  } else {
    encode_long(piece, ids);
  }
}

void byte_pairs::encode_short(std::string_view piece, std::vector<int32_t>& ids) const {
  std::array<int32_t, scanned_bytes_max> tokens;
  std::array<merge, scanned_bytes_max> merges;  // [i]: of tokens i and i + 1
  size_t count = piece.size();
  for (size_t i = 0; i < count; ++i) tokens[i] = byte_ids_[static_cast<uint8_t>(piece[i])];
  for (size_t i = 0; i + 1 < count; ++i) merges[i] = find(tokens[i], tokens[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == no_rank) break;
    tokens[best] = merges[best].id;
    --count;
    for (size_t i = best + 1; i < count; ++i) {
      tokens[i] = tokens[i + 1];
      merges[i - 1] = merges[i];
    }
    if (best > 0) merges[best - 1] = find(tokens[best - 1], tokens[best]);
    if (best + 1 < count) merges[best] = find(tokens[best], tokens[best + 1]);
  }
  ids.insert(ids.end(), tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count));
}

void byte_pairs::encode_long(std::string_view piece, std::vector<int32_t>& ids) const {
  std::vector<link> links(piece.size());
  std::priority_queue<candidate> heap;
  const auto at = [&](int32_t index) -> link& { return links[static_cast<size_t>(index)]; };
  const auto offer = [&](int32_t left) {
    if (left < 0 || at(left).next < 0) return;
    const link& right = at(at(left).next);
    const merge made = find(at(left).id, right.id);
    if (made.rank != no_rank) heap.push({made, left, at(left).version, right.version});
  };
  const auto count = static_cast<int32_t>(piece.size());
  for (int32_t i = 0; i < count; ++i) {
    at(i) = {byte_ids_[static_cast<uint8_t>(piece[static_cast<size_t>(i)])], i - 1, i + 1 < count ? i + 1 : -1, 0};
  }
  for (int32_t i = 0; i + 1 < count; ++i) offer(i);
  while (!heap.empty()) {
    const candidate top = heap.top();
    heap.pop();
    link& left = at(top.left);
    if (left.version != top.left_version || left.next < 0 || at(left.next).version != top.right_version) continue;
    link& right = at(left.next);
    left.id = top.made.id;
    ++left.version;
    ++right.version;
    left.next = right.next;
    if (right.next >= 0) at(right.next).previous = top.left;
    offer(left.previous);
    offer(top.left);
  }
  for (int32_t i = 0; i >= 0; i = at(i).next) ids.push_back(at(i).id);
}

}  // namespace troupe
