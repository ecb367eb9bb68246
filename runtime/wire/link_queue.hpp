// The messages of one directed link with finite bandwidth: which leaves when, and when each arrives.
//
// Decisions only: the caller passes the time in, live or virtual, and it never goes back. Owned by a
// wire that imitates a network, which locks where it needs to. Messages take the link one after
// another. When it becomes free, dispatches and combines go before bulk, each in the order of `push`;
// bulk takes the link in chunks, so that a dispatch waits for one chunk at most. Then a message travels
// for the link's latency and its own jitter, which is a function of (seed, link, number of the message)
// and never lets one overtake another of its class. What happened is computed from the times of the
// pushes and not from when `pop` was called, so a caller that comes late loses no bandwidth.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>

#include "runtime/wire/link_shape.hpp"
#include "runtime/wire/wire.hpp"

namespace troupe {

// Since the link was made.
struct link_counters {
  uint64_t messages = 0;  // that have taken the link
  uint64_t bytes = 0;     // of these, headers included
  uint64_t busy_ns = 0;   // the link was occupied
  uint64_t wait_ns = 0;   // sum over messages: from `push` until its first byte took the link
};

struct link_message {
  endpoint to;
  micro_batch message;
};

struct link_identity {
  uint16_t from = 0;
  uint16_t to = 0;
  uint64_t seed = 1;  // of jitter
};

class link_queue {
 public:
  static constexpr uint64_t default_bulk_chunk_bytes = uint64_t{512} << 10U;

  link_queue(link_identity link, link_shape shape, uint64_t bulk_chunk_bytes = default_bulk_chunk_bytes);

  // A message enters. It occupies the link for its header and `payload_bytes` of the header.
  void push(endpoint to, micro_batch message, uint64_t now_ns);

  // When to call `pop` next, if nothing is pushed meanwhile; empty when nothing is on the way. It may be
  // earlier than the next arrival, never later.
  std::optional<uint64_t> next_event_ns() const;

  // Takes the earliest message that has arrived by `now_ns`; equal times in the order they left.
  std::optional<link_message> pop(uint64_t now_ns);

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  const link_shape& shape() const { return shape_; }
  const link_counters& counters() const { return counters_; }
  // Drops what is on the way.
  void clear();

 private:
  struct waiting {
    link_message item;
    uint64_t bytes = 0;  // that have yet to take the link
    uint64_t pushed_ns = 0;
    uint64_t number = 0;
    bool started = false;
  };
  struct travelling {
    link_message item;
    uint64_t arrival_ns = 0;
    uint64_t departure = 0;
  };

  bool idle() const { return urgent_.empty() && bulk_.empty(); }
  uint64_t next_start_ns() const;
  bool urgent_is_next(uint64_t start_ns) const;
  void advance(uint64_t now_ns);
  void take_link(std::deque<waiting>& from, uint64_t start_ns, uint64_t bytes_max);
  uint64_t jitter_ns(uint64_t number) const;

  const link_identity link_;
  const link_shape shape_;
  const uint64_t bulk_chunk_bytes_;
  std::deque<waiting> urgent_;
  std::deque<waiting> bulk_;
  std::array<std::deque<travelling>, message_class_count> travelling_;  // each in the order of arrival
  std::array<uint64_t, message_class_count> last_arrival_ns_{};
  uint64_t free_ns_ = 0;  // the link is occupied until then
  uint64_t pushed_ = 0;
  uint64_t departed_ = 0;
  size_t size_ = 0;
  link_counters counters_;
};

}  // namespace troupe
