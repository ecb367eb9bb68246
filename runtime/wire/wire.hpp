// The wire seam: micro-batches between the actors of different nodes (and of one).
//
// `send` never blocks and may be called from any thread; it takes a reference to the payload and
// holds it until the transport has completed. Delivery calls the receiver attached to the addressed
// slot, on a thread of the wire's own choosing; a receiver only puts the message into a mailbox, or where
// `handlers_most` allows it lets the actor handle it at once. A message to a peer that is gone is dropped
// silently: senders design for silence (deadlines, retries).
//
// Implementations: `local` (one process: moves a pointer), `ucx` (between processes and hosts),
// `modelled` (virtual time, with latency, bandwidth and queueing per link), `shaped` (in front of
// another: makes its links slow).
#pragma once

#include <cstdint>
#include <functional>

#include "runtime/error.hpp"
#include "runtime/wire/micro_batch.hpp"

namespace troupe {

// Where a micro-batch goes: a slot (one actor) of a node's incarnation.
struct endpoint {
  uint16_t node = 0;
  uint16_t slot = 0;
  uint32_t incarnation = 0;

  bool operator==(const endpoint&) const = default;
};

struct wire_statistics {
  uint64_t messages_sent = 0;
  uint64_t messages_received = 0;
  uint64_t bytes_sent = 0;  // payloads
  uint64_t bytes_received = 0;
  uint64_t bytes_in_flight = 0;   // payloads handed to the transport and not yet completed
  uint64_t messages_dropped = 0;  // to or from a peer that is gone, or refused by validation
  uint64_t link_busy_ns = 0;      // of the busiest outgoing link whose bandwidth is known
  uint64_t connections = 0;       // to other nodes, now
  uint64_t reconnections = 0;     // attempts to connect anew after a connection broke
};

class wire {
 public:
  using receiver = std::function<void(micro_batch)>;

  virtual ~wire() = default;

  // Attaches the addressee of `slot` on this node; replaces an earlier one.
  virtual void attach(uint16_t slot, receiver to) = 0;
  virtual void detach(uint16_t slot) = 0;

  // Sends; the wire fills destination, sequence and checksum of the header, and `send_time_ns` where it
  // is 0: a wire in front of this one may have stamped when the caller sent.
  // Fails: exhausted (bytes in flight to that peer at the configured maximum; try again after a
  // completion), unavailable (no such peer or incarnation).
  virtual result<void> send(endpoint to, micro_batch message) = 0;

  virtual wire_statistics statistics() const = 0;

  // How many short handlers of actors a receiver may run itself for a message of another node. More than none only
  // where such receivers are called by a thread of this wire alone, with no lock held and never inside each other.
  virtual uint32_t handlers_most() const { return 0; }

  // What a message of so many bytes takes between two nodes when nothing else is on the link, ns; 0 when
  // that is not known, or nothing. Pure.
  virtual uint64_t transfer_ns(uint16_t from, uint16_t to, uint64_t bytes) const {
    (void)from, (void)to, (void)bytes;
    return 0;
  }
};

}  // namespace troupe
