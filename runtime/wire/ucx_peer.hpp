// What a wire knows of another node, and the table of them.
//
// One `ucx_peer` per node id, made when first heard of and kept until the wire goes, so that senders on
// any thread may hold a plain pointer. Two halves: what senders read and reserve (atomic), and what
// only the progress thread touches.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "runtime/wire/micro_batch.hpp"
#include "runtime/wire/socket_address.hpp"

namespace troupe {

struct send_request;
struct waiting_fragment;
struct ucx_link;

// How much of one class may be, or is, in flight to one peer.
struct credit_limits {
  uint64_t bytes = 0;
  uint32_t messages = 0;
};

// Bytes and messages accepted by `send` and not yet completed. Any thread.
class credit_account {
 public:
  // A message larger than the whole limit passes when nothing else is in flight; otherwise it never
  // could.
  bool reserve(uint64_t bytes, const credit_limits& limits);
  void release(uint64_t bytes) { reserved_.fetch_sub(one_message + bytes, std::memory_order_relaxed); }
  credit_limits reserved() const {
    const uint64_t now = reserved_.load(std::memory_order_relaxed);
    return {now % one_message, static_cast<uint32_t>(now / one_message)};
  }

  // Both counts in one word, so that a message costs one atomic operation each way.
  static constexpr uint64_t one_message = uint64_t{1} << 42U;
  static constexpr uint64_t bytes_limit = one_message / 4;  // of what `credit_limits` may say
  static constexpr uint32_t messages_limit = (1U << 22U) / 4;

 private:
  std::atomic<uint64_t> reserved_{0};
};

enum class peer_state : uint8_t {
  absent,      // not connected and nobody wants it to be
  connecting,  // what is sent waits
  retrying,    // its connection broke; what is sent waits for the next attempt
  up,
};

struct ucx_peer {
  explicit ucx_peer(uint16_t node_id) : node(node_id) {}

  const uint16_t node;

  // Senders. Which incarnation may be sent to now, if any; written under the table's mutex.
  bool admits(uint32_t to_incarnation) const {
    return admission.load(std::memory_order_acquire) == admission_of(to_incarnation);
  }
  static constexpr uint64_t admission_of(uint32_t to_incarnation) { return uint64_t{to_incarnation} << 1U | 1U; }
  std::atomic<uint64_t> admission{0};
  std::array<credit_account, message_class_count> credits;

  // Progress thread only.
  peer_state state = peer_state::absent;
  uint32_t incarnation = 0;      // of the current session
  uint64_t incarnation_min = 0;  // earlier ones are refused; 64 bits, so that all can be
  uint16_t unit = 0;             // as the peer said
  uint64_t session = 0;          // under which we send
  uint64_t peer_session = 0;     // under which it sends; 0 until it has said
  uint64_t session_cut = 0;      // the last of our sessions that this side ended, the peer seeming alive
  ucx_link* sends_on = nullptr;
  send_request* waiting_first = nullptr;  // sent before the peer was up
  send_request* waiting_last = nullptr;
  send_request* bulk_first = nullptr;  // bulk that UCX has not taken all of; only the first may have begun
  send_request* bulk_last = nullptr;
  bool bulk_listed = false;                 // the sender visits it
  uint64_t bulk_bytes_in_ucx = 0;           // of earlier sessions too
  uint64_t bulk_chunk_bytes = 0;            // of what it sends, as it said
  waiting_fragment* ready_first = nullptr;  // fragments of its bulk that have memory and are to be fetched
  waiting_fragment* ready_last = nullptr;
  bool ready_listed = false;  // the receiver visits it
  uint32_t fetching = 0;      // fragments on their way
  // Connecting anew.
  bool wanted = false;        // `connect` asked for it, and nothing has ended that since
  bool outcome_owed = false;  // `on_peer` has not yet told what came of `connect`
  bool deliberate = false;    // no connection yet since `connect`
  bool parted = false;        // this side disconnected it, so its automatic attempts are refused
  socket_address address;     // when wanted
  uint64_t retry_ns = 0;      // when the next attempt is due
  uint32_t retry_delay_ms = 0;

  uint64_t heard_ns = 0;  // when its last message came
  bool ping_in_flight = false;
  std::array<uint64_t, message_class_count> next_sequence{};
  std::array<uint64_t, message_class_count> expected_sequence{};
  uint64_t bulk_opened = 0;  // bit i: bulk message `expected_sequence - 1 - i` has come or begun to
};

// Notes that a bulk message of that sequence number has come or begun to, and whether it is the one that
// was expected. False when it had already, or when that is too long ago to tell.
bool open_bulk(ucx_peer& peer, uint64_t sequence, bool& in_order);

class peer_table {
 public:
  // Null when the node was never heard of. Any thread; two loads.
  ucx_peer* find(uint16_t node) const;

  // Any thread.
  ucx_peer& find_or_add(uint16_t node);

  // Calls `visit` with every peer. Any thread.
  template <class Visit>
  void for_each(Visit visit) const {
    for (const auto& outer : blocks_) {
      const auto* const found = outer.load(std::memory_order_acquire);
      if (found == nullptr) continue;
      for (const auto& slot : found->slots)
        if (auto* peer = slot.load(std::memory_order_acquire); peer != nullptr) visit(*peer);
    }
  }

  ~peer_table();

 private:
  struct block {
    std::array<std::atomic<ucx_peer*>, 256> slots{};
  };

  std::array<std::atomic<block*>, 256> blocks_{};
  std::mutex growth_mutex_;
};

}  // namespace troupe
