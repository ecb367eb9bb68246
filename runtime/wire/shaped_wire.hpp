// A wire in front of another that makes its links slow: a network of any shape on one machine.
//
// A message to another node enters the queue of its link (`link_queue`) and reaches the inner wire's
// `send` once it would have arrived; the inner wire's own time comes on top. Messages to the node itself
// and over links without a shape go straight through. `send` may be called from any thread and never
// blocks. One thread, "troupe-links", sleeps until the next arrival; it calls the inner wire's `send`
// and takes no CPU when nothing is on the way. A message that the inner wire cannot take yet stays first
// of its link and class and is tried again.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "runtime/wire/link_queue.hpp"
#include "runtime/wire/wire.hpp"

namespace troupe {

struct shaped_wire_options {
  uint16_t node = 0;  // whose wire it is
  link_table links;
  uint64_t seed = 1;  // of jitter
  uint64_t bulk_chunk_bytes = link_queue::default_bulk_chunk_bytes;
  // On the way over one link, for each message class; more is refused as exhausted.
  std::array<uint64_t, message_class_count> bytes_max = {uint64_t{64} << 20U, uint64_t{64} << 20U, uint64_t{64} << 20U};
  uint32_t messages_max = 2048;
};

struct link_statistics {
  uint16_t to = 0;
  link_shape shape;
  link_counters counters;
  uint64_t messages_on_the_way = 0;
  uint64_t bytes_on_the_way = 0;  // headers included
};

class shaped_wire final : public wire {
 public:
  shaped_wire(std::shared_ptr<wire> inner, shaped_wire_options options);
  // Drops what is on the way.
  ~shaped_wire() override;
  shaped_wire(const shaped_wire&) = delete;
  shaped_wire& operator=(const shaped_wire&) = delete;

  void attach(uint16_t slot, receiver to) override { inner_->attach(slot, std::move(to)); }
  void detach(uint16_t slot) override { inner_->detach(slot); }

  // Fails: exhausted (as much is on the way over the link as the options allow), invalid_argument (the
  // header's counts do not agree with the payload). That a peer is gone shows when a message arrives: it
  // is dropped and counted.
  result<void> send(endpoint to, micro_batch message) override;

  uint32_t handlers_most() const override { return inner_->handlers_most(); }

  // The inner wire's, plus what is on the way (bytes in flight) and was dropped here.
  wire_statistics statistics() const override;
  uint64_t transfer_ns(uint16_t from, uint16_t to, uint64_t bytes) const override {
    return from == to ? 0 : options_.links.find(from, to).transfer_ns(bytes);
  }
  // Of every link that has carried a message, in the order of nodes.
  std::vector<link_statistics> links() const;
  // Times the thread has looked for something to do.
  uint64_t wake_ups() const;

 private:
  struct traffic {
    uint64_t messages = 0;
    uint64_t bytes = 0;
  };
  struct shaped_link {
    shaped_link(link_identity identity, const link_shape& shape, uint64_t bulk_chunk_bytes)
        : queue(identity, shape, bulk_chunk_bytes) {}
    link_queue queue;
    std::array<std::deque<link_message>, message_class_count> arrived;  // not yet taken by the inner wire
    std::array<traffic, message_class_count> on_the_way;                // in `queue` and in `arrived`
  };

  shaped_link& link_to(uint16_t node, const link_shape& shape);
  void run();
  bool hand_over(std::unique_lock<std::mutex>& lock, shaped_link& from, size_t class_index);
  std::optional<uint64_t> next_event_ns() const;

  const std::shared_ptr<wire> inner_;
  const shaped_wire_options options_;

  mutable std::mutex mutex_;  // of everything below
  std::condition_variable changed_;
  std::map<uint16_t, shaped_link> links_;
  uint64_t sleeps_until_ns_ = 0;  // when the thread wakes by itself; 0 while it runs
  uint64_t dropped_ = 0;
  uint64_t wake_ups_ = 0;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace troupe
