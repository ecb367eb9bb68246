// UCX's objects for one wire (context, worker, listener) and the sleep of the thread that runs them.
//
// Owned by a wire's engine. The progress thread makes it, and it is destroyed once that thread has ended; one thread at
// a time calls it. Only `wake` and `wait_at_gate` may be called meanwhile.
#pragma once

#include <ucp/api/ucp.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "runtime/wire/socket_address.hpp"
#include "runtime/wire/ucx_status.hpp"

namespace troupe {

class ucx_worker {
 public:
  // `transports` is UCX's list ("posix,cma,tcp"); empty leaves UCX_TLS in force. `one_machine`: no peer is elsewhere.
  // Fails: unsupported (no such transport or device), internal.
  static result<std::unique_ptr<ucx_worker>> make(const std::string& transports, bool one_machine);

  // Requires: no request of this worker is unfinished (UCX would abort the process).
  ~ucx_worker();
  ucx_worker(const ucx_worker&) = delete;
  ucx_worker& operator=(const ucx_worker&) = delete;

  // Accepts connections at `address`; `on_request(request, argument)` is called from `progress`.
  // Fails: unavailable (the address is taken), invalid_argument.
  result<void> listen(const socket_address& address, ucp_listener_conn_callback_t on_request, void* argument);
  void stop_listening();
  std::string listen_address() const;  // empty before `listen`
  ucp_listener_h listener() const { return listener_; }

  // False when messages through shared memory do not arrive any more: each process that writes into the receive queue
  // takes a place first and fills it then, and one that was killed in between leaves a place at which the queue waits
  // for ever (UCX 1.13, `uct_mm_ep_am_common_send`). Sends one to itself and progresses until it has come, 100 ms at
  // most; true when that could not be tried. Handlers may be called meanwhile. After false `reopen` is next.
  bool hears();

  // UCX's objects anew: no connection, no listener, no handler remains. Requires: as the destructor.
  // Fails: as `make`; the worker then has none.
  result<void> reopen();

  result<void> on_message(unsigned id, ucp_am_recv_callback_t handler, void* argument);

  ucp_worker_h handle() const { return worker_; }

  // True when something happened.
  bool progress() { return ucp_worker_progress(worker_) != 0; }

  // Sleeping, in steps: announce it, look once more for work that other threads left, arm, wait if all that found
  // nothing, and cancel the announcement. A `wake` after the announcement ends the wait.
  void announce_sleep() { sleeping_.store(true); }
  bool arm();  // false: something has arrived
  void wait(uint64_t timeout_ns);
  void cancel_sleep();

  // The wait of a thread for which others may step in: while the gate is closed only time ends it.
  void wait_at_gate(uint64_t timeout_ns);
  void open_gate();
  void close_gate();

  // Any thread. Costs one load unless a sleep is announced.
  void wake();

 private:
  ucx_worker(std::string transports, bool one_machine)
      : transports_(std::move(transports)), one_machine_(one_machine) {}
  result<void> open();
  result<void> make_worker(ucp_worker_h& out);
  ucp_ep_h connect_to_itself(ucp_worker_h from);  // null: it could not
  void close_ucx();
  void set_gate(uint32_t events);

  const std::string transports_;
  const bool one_machine_;
  bool heard_ = false;        // what `hears` sent
  bool left_behind_ = false;  // a worker of `context_` that could not be ended

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_listener_h listener_ = nullptr;
  int event_fd_ = -1;  // ours
  int poll_set_ = -1;  // epoll of UCX's descriptor and ours
  int gate_ = -1;      // epoll of `poll_set_`
  std::atomic<bool> sleeping_{false};
};

// Marks the process's descriptors that lack it close-on-exec: UCX leaves its own open across exec,
// and a child that inherits them keeps a dead node's connections alive.
void close_descriptors_on_exec();

}  // namespace troupe
