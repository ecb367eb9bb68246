// The receiving half of a wire's progress thread.
//
// Checks every arriving header, brings its payload into the memory of its class and delivers it. When
// that memory is used up the message waits, in a bounded queue of its class: a large one stays with its
// sender meanwhile, which is the back-pressure. Bulk that comes in fragments is fetched piece by piece into
// one buffer of the full size (`ucx_receiver_bulk.cpp`), one fragment in each round of progress, so that a
// dispatch waits for no more than that. Progress thread only.
#pragma once

#include <ucp/api/ucp.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/wire/slot_table.hpp"
#include "runtime/wire/ucx_assembly.hpp"
#include "runtime/wire/ucx_counters.hpp"
#include "runtime/wire/ucx_peer.hpp"
#include "runtime/wire/ucx_wire_options.hpp"

namespace troupe {

class ucx_receiver {
 public:
  ucx_receiver(const ucx_wire_options& options, ucx_counters& counters, const peer_table& peers,
               const slot_table& slots);

  void start(ucp_worker_h worker) { worker_ = worker; }

  // UCX's callback for data messages; `argument` is the receiver.
  static ucs_status_t on_data(void* argument, const void* header, size_t header_size, void* data, size_t size,
                              const ucp_am_recv_param_t* parameters);

  // Lets go of receivers that were detached.
  void refresh_slots() { slots_.refresh(); }

  // Gives messages that wait for memory another chance. True when one got some.
  bool retry_held();
  bool has_held() const { return held_count_ != 0; }

  // Begins to fetch the next fragment of bulk. True when it did.
  bool fetch_next();
  bool has_ready() const { return !ready_peers_.empty(); }
  uint64_t urgent_received() const { return urgent_received_; }  // dispatches and combines

  // The peer's session is over: what waits for memory, or for more fragments, is let go.
  void drop_held(ucx_peer& peer);

  uint64_t unfinished() const { return unfinished_; }  // transfers that UCX has under way

 private:
  // A message whose header has been accepted, or a fragment of one. Those that wait for memory stand in
  // the queue of their class; of a message in fragments only the first, the others in a list behind it.
  struct arrival : waiting_fragment {
    micro_batch message;  // of a fragment: the header alone
    ucx_receiver* receiver = nullptr;
    ucx_peer* peer = nullptr;
    uint64_t session = 0;
    void* data = nullptr;  // UCX's: the bytes, or with `rendezvous` a descriptor
    bool rendezvous = false;
    bulk_assembly* part_of = nullptr;
    uint64_t bytes = 0;
    arrival* next = nullptr;
  };
  struct arrival_queue {
    arrival* first = nullptr;
    arrival* last = nullptr;
    uint32_t size = 0;  // waiting, fragments behind the first of their message included
  };

  // Bulk in fragments.
  ucs_status_t accept_fragment(const micro_batch_header& header, ucx_peer& peer, void* data, size_t size,
                               uint64_t attributes);
  ucs_status_t hold_fragment(bulk_assembly& whole, const micro_batch_header& header, void* data, size_t size,
                             uint64_t attributes);
  arrival* make_arrival(bulk_assembly& whole, const micro_batch_header& header, void* data, size_t size,
                        bool rendezvous);
  void start_waiting(bulk_assembly& whole);
  void make_ready(arrival* fragment);
  arrival* take_ready(ucx_peer& peer);
  void discard(arrival* fragment);
  void finish_fragment(bulk_assembly& whole, uint64_t bytes, ucs_status_t status);
  void give_up(bulk_assembly& whole);
  void close(bulk_assembly& whole);

  static void on_received(void* ucx_request, ucs_status_t status, size_t length, void* argument);

  ucx_peer* accept(const void* header, size_t header_size, size_t size, micro_batch_header& out);
  ucs_status_t accepted(micro_batch&& message, ucx_peer& peer, void* data, uint64_t attributes);
  void enqueue(arrival_queue& queue, arrival* held);
  void dequeue(arrival_queue& queue, arrival* held);
  void count_held(arrival_queue& queue, int change);
  ucs_status_t hold(const micro_batch_header& header, ucx_peer& peer, void* data, uint64_t attributes);
  void fetch(arrival* from);
  void finish_fetch(arrival* fetched, ucs_status_t status);
  void deliver(micro_batch&& message, const ucx_peer& peer, uint64_t session);
  buffer_pool& pool_of(const micro_batch_header& header) const;
  arrival* take_arrival();
  void give_back(arrival* done);

  const ucx_wire_options& options_;
  ucx_counters& counters_;
  const peer_table& peers_;
  slot_view slots_;
  ucp_worker_h worker_ = nullptr;
  std::array<std::unique_ptr<buffer_pool>, message_class_count> own_pools_;
  std::array<buffer_pool*, message_class_count> pools_{};
  std::array<arrival_queue, message_class_count> held_;
  uint64_t held_count_ = 0;
  bulk_assemblies assemblies_;
  std::vector<ucx_peer*> ready_peers_;  // those with fragments to fetch
  size_t next_ready_ = 0;               // whose turn it is
  uint64_t urgent_received_ = 0;
  uint64_t unfinished_ = 0;
  arrival* free_ = nullptr;
  std::vector<std::unique_ptr<arrival[]>> chunks_;
};

}  // namespace troupe
