#include "runtime/wire/ucx_peer.hpp"

namespace troupe {

bool credit_account::reserve(uint64_t bytes, const credit_limits& limits) {
  const uint64_t before = reserved_.fetch_add(one_message + bytes, std::memory_order_relaxed);
  const uint64_t bytes_before = before % one_message;
  const bool fits = bytes_before == 0 || bytes_before + bytes <= limits.bytes;
  if (fits && before / one_message < limits.messages) return true;
  release(bytes);
  return false;
}

bool open_bulk(ucx_peer& peer, uint64_t sequence, bool& in_order) {
  auto& expected = peer.expected_sequence[bulk_class];
  in_order = sequence == expected;
  if (sequence >= expected) {
    const uint64_t passed = sequence - expected;
    peer.bulk_opened = passed >= 63 ? 1 : peer.bulk_opened << (passed + 1) | 1U;
    expected = sequence + 1;
    return true;
  }
  const uint64_t ago = expected - 1 - sequence;
  if (ago >= 64 || (peer.bulk_opened >> ago & 1U) != 0) return false;
  peer.bulk_opened |= uint64_t{1} << ago;
  return true;
}

ucx_peer* peer_table::find(uint16_t node) const {
  const block* found = blocks_[node >> 8U].load(std::memory_order_acquire);
  return found == nullptr ? nullptr : found->slots[node & 255U].load(std::memory_order_acquire);
}

ucx_peer& peer_table::find_or_add(uint16_t node) {
  if (auto* found = find(node); found != nullptr) return *found;
  const std::lock_guard lock(growth_mutex_);
  auto& outer = blocks_[node >> 8U];
  block* inner = outer.load(std::memory_order_relaxed);
  if (inner == nullptr) {
    inner = std::make_unique<block>().release();  // owned by the table, freed in its destructor
    outer.store(inner, std::memory_order_release);
  }
  auto& slot = inner->slots[node & 255U];
  ucx_peer* peer = slot.load(std::memory_order_relaxed);
  if (peer == nullptr) {
    peer = std::make_unique<ucx_peer>(node).release();
    slot.store(peer, std::memory_order_release);
  }
  return *peer;
}

peer_table::~peer_table() {
  for (auto& outer : blocks_) {
    const std::unique_ptr<block> inner(outer.load(std::memory_order_relaxed));
    if (!inner) continue;
    for (auto& slot : inner->slots) const std::unique_ptr<ucx_peer> peer(slot.load(std::memory_order_relaxed));
  }
}

}  // namespace troupe
