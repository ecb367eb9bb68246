// The sending half of a wire's progress thread.
//
// Takes what other threads submitted, holds what waits for a connection, hands the rest to UCX and
// returns credits and payload references as UCX completes. Progress thread only, `submit` excepted.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>

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

  // The peer is gone: drops what waits for it. What UCX has comes back through its callbacks.
  void drop_waiting(ucx_peer& peer);

  // Ends quarantines that are over; all of them with `everything`.
  void end_quarantine(uint64_t now_ns, bool everything);
  bool has_quarantined() const { return quarantine_first_ != nullptr; }

  uint64_t unfinished() const { return unfinished_; }  // requests that UCX holds

 private:
  static void on_sent(void* ucx_request, ucs_status_t status, void* argument);

  void route(send_request* request);
  void start(send_request* request);
  void finish(send_request* request, ucs_status_t status);
  void drop(send_request* request, progress_counter& reason);
  void release_credit(send_request* request);
  void quarantine(send_request* request);

  const ucx_wire_options& options_;
  ucx_counters& counters_;
  request_stack submitted_;
  request_pool requests_;
  uint64_t unfinished_ = 0;
  send_request* quarantine_first_ = nullptr;  // the one that ends first
  send_request* quarantine_last_ = nullptr;
};

}  // namespace troupe
