// The sending half of a wire's progress thread.
//
// Takes what other threads submitted, holds what waits for a connection, hands the rest to UCX and
// returns credits and payload references as UCX completes. Dispatch and combine go to UCX at once; bulk
// queues behind them and goes in fragments (`ucx_sender_bulk.cpp`). Progress thread only, `submit`
// excepted.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/wire/ucx_counters.hpp"
#include "runtime/wire/ucx_requests.hpp"
#include "runtime/wire/ucx_wire_options.hpp"

namespace troupe {

class ucx_sender {
 public:
  ucx_sender(const ucx_wire_options& options, ucx_counters& counters) : options_(options), counters_(counters) {}

  request_pool& requests() { return requests_; }

  // Any thread. The wire wakes the progress thread afterwards.
  void submit(send_request* request) { submitted_.push(request); }
  bool has_submitted() const { return !submitted_.empty(); }

  // What was submitted, the oldest first; then starts, holds or drops it. In two steps, since a command
  // (`connect`) given before a message must be obeyed before it.
  send_request* take_submitted() { return submitted_.take_all(); }
  void route_all(send_request* first);

  // The peer is up: starts what waited for it.
  void start_waiting(ucx_peer& peer);

  // The peer is gone: drops what waits for it, queued bulk included. What UCX has comes back through its
  // callbacks.
  void drop_waiting(ucx_peer& peer);

  // Hands queued bulk to UCX as far as its limits allow, unless a dispatch or combine went since the last
  // call. True when there may be more to do at once.
  bool start_bulk();
  uint64_t urgent_started() const { return urgent_started_; }  // dispatches and combines handed to UCX
  bool has_bulk() const { return !bulk_peers_.empty(); }

  // The peer's connection broke and will be made anew: what UCX has not begun with waits for that.
  void keep_waiting(ucx_peer& peer);

  // Ends quarantines that are over; all of them with `everything`.
  void end_quarantine(uint64_t now_ns, bool everything);
  bool has_quarantined() const { return quarantine_first_ != nullptr; }

  uint64_t unfinished() const { return unfinished_; }  // requests that UCX holds
  // Until then an answer to a large payload may come any moment (`spin_after_ns`).
  uint64_t answer_until_ns() const { return answer_until_ns_; }

 private:
  static void on_sent(void* ucx_request, ucs_status_t status, void* argument);

  void route(send_request* request);
  static void wait(send_request* request);
  void start(send_request* request);
  void finish(send_request* request, ucs_status_t status);
  void drop(send_request* request, progress_counter& reason);
  void release_credit(send_request* request);
  void quarantine(send_request* request);

  // Bulk.
  static void on_fragment_sent(void* ucx_request, ucs_status_t status, void* argument);
  void queue_bulk(send_request* request);
  void unqueue_bulk(ucx_peer& peer);
  bool start_bulk_of(ucx_peer& peer);
  void start_fragment(send_request* request, uint64_t bytes);
  void finish_fragment(send_fragment* fragment, ucs_status_t status);
  void drop_bulk(ucx_peer& peer);
  void drop_first_bulk(ucx_peer& peer);
  send_fragment* take_fragment();

  const ucx_wire_options& options_;
  ucx_counters& counters_;
  request_stack submitted_;
  request_pool requests_;
  uint64_t unfinished_ = 0;
  uint64_t answer_until_ns_ = 0;
  send_request* quarantine_first_ = nullptr;  // the one that ends first
  send_request* quarantine_last_ = nullptr;
  std::vector<ucx_peer*> bulk_peers_;  // those with queued bulk
  uint64_t urgent_started_ = 0;
  uint64_t urgent_before_ = 0;  // as `start_bulk` last saw it
  send_fragment* free_fragments_ = nullptr;
  std::vector<std::unique_ptr<send_fragment[]>> fragment_chunks_;
};

}  // namespace troupe
