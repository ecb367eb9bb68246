// Messages on their way out, from the sender's thread to the progress thread and back.
//
// Owned by the wire. Any thread takes a request, fills it and pushes it; the progress thread takes all
// that were pushed, and returns each when UCX has completed it. Nothing is allocated once as many
// requests exist as were ever in flight together.
#pragma once

#include <ucs/type/status.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/memory/short_lock.hpp"
#include "runtime/wire/micro_batch.hpp"
#include "runtime/wire/ucx_peer.hpp"

namespace troupe {

class ucx_sender;

struct send_request {
  micro_batch message;
  ucx_peer* peer = nullptr;
  ucx_sender* sender = nullptr;
  ucx_link* link = nullptr;  // UCX has it there; of bulk, see `send_fragment`
  uint64_t charged = 0;      // credit to give back
  uint64_t session = 0;      // under which it was started
  uint64_t quarantined_until_ns = 0;
  send_request* next = nullptr;

  // Bulk only.
  bool begun = false;             // it has a session and a sequence number
  bool queued = false;            // UCX has not taken all of it, and will
  uint64_t offset = 0;            // bytes that UCX has taken
  uint32_t fragments = 0;         // that UCX holds now
  ucs_status_t outcome = UCS_OK;  // the first failure of a fragment
};

// A fragment of a bulk message inside UCX, which needs the header until it has completed.
struct send_fragment {
  micro_batch message;  // the header alone: `of` holds the payload
  send_request* of = nullptr;
  ucx_link* link = nullptr;
  uint64_t bytes = 0;
  send_fragment* next = nullptr;
};

// A stack that any thread pushes on and one thread empties: no ABA, since nothing is popped singly.
class request_stack {
 public:
  void push(send_request* request) {
    request->next = top_.load(std::memory_order_relaxed);
    // Sequentially consistent: the pusher then reads whether the progress thread sleeps.
    while (!top_.compare_exchange_weak(request->next, request)) {}
  }
  bool empty() const { return top_.load() == nullptr; }

  // The oldest first, linked by `next`; null when empty.
  send_request* take_all();

  // As `take_all`, in any order.
  send_request* take_all_unordered() { return top_.exchange(nullptr, std::memory_order_acquire); }

 private:
  std::atomic<send_request*> top_{nullptr};
};

class request_pool {
 public:
  // Never null: how many there can be is limited by the credits. Any thread.
  send_request* take();
  // Progress thread, or the taker before it pushed. Drops the payload reference.
  void give_back(send_request* request);

 private:
  void grow();

  request_stack returned_;
  short_lock lock_;
  send_request* free_ = nullptr;
  std::vector<std::unique_ptr<send_request[]>> chunks_;
};

}  // namespace troupe
