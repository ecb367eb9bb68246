// What a `ucx_wire` can be told, and what it tells.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>

#include "runtime/wire/micro_batch.hpp"

namespace troupe {

// A peer became reachable, or ceased to be.
struct peer_event {
  uint16_t node = 0;
  uint32_t incarnation = 0;
  uint16_t unit = 0;  // deployment unit; known when up
  bool up = false;
  std::string reason;  // why it is down, for people
};

// Limits of one message class. Dispatch, combine and bulk each have their own, so that none can block
// another.
struct wire_class_options {
  // Larger lets more overlap; what is in flight stays in memory while a peer hangs.
  uint64_t bytes_in_flight_max = uint64_t{64} << 20U;  // per peer, 128 bytes of header a message included
  uint32_t messages_in_flight_max = 2048;              // per peer

  // Memory for arriving payloads, in capacity (powers of two). When it is used up, senders wait.
  uint64_t receive_bytes_max = uint64_t{256} << 20U;
  // A pool to use instead of an own one of that size. It outlives the wire. Without it, every buffer
  // received must be dropped before the wire is destroyed.
  buffer_pool* receive_pool = nullptr;
  // Messages (of bulk: fragments) that may wait for such memory; more are refused (large) or dropped
  // (small). A bulk message of which a fragment is refused is refused as a whole.
  uint32_t held_max = 1024;
};

struct ucx_wire_options {
  uint16_t node = 0;
  uint32_t incarnation = 0;                  // higher after each restart of the node
  uint16_t unit = 0;                         // deployment unit, told to peers
  uint64_t cluster_key = 0;                  // equal on all nodes; keeps clusters apart, protects from nothing
  std::string listen = "127.0.0.1:0";        // port 0: the system chooses; see `listen_address`
  std::string transports = "posix,cma,tcp";  // UCX's list; "tcp" imitates two hosts; empty: UCX_TLS
  std::array<wire_class_options, message_class_count> classes{};  // dispatch, combine, bulk

  uint64_t payload_bytes_max = uint64_t{1} << 30U;  // of one message, either way
  uint64_t rendezvous_bytes = 64 * 1024;            // from here on the receiver fetches straight into its pool
  bool payload_checksum = false;                    // XXH3-64 over payloads too; costs a pass over them each side

  // Bulk goes behind dispatch and combine: larger messages go in fragments of so many bytes, and no more
  // than `bulk_chunks_in_flight` times as many bytes of bulk are inside UCX for one peer, where nothing
  // can overtake them. Larger gives more bandwidth; a dispatch waits for up to that much. A multiple of 64,
  // at least `rendezvous_bytes`. Nodes may differ: each tells its own when it connects.
  uint64_t bulk_chunk_bytes = 512 * 1024;
  uint32_t bulk_chunks_in_flight = 1;
  // The receiver fetches the next fragment when no dispatch or combine has come or gone for so long, which
  // lets an exchange of them run undisturbed; but at the latest so long after the one before, which
  // guarantees bulk a share.
  uint32_t bulk_gap_us = 20;
  uint32_t bulk_wait_max_us = 1000;

  uint32_t connections_max = 4096;
  uint32_t handshake_timeout_ms = 10'000;  // a connection not greeted by then is given up
  // A broken connection is made anew after the first, then, failing that, after twice as long each time, up
  // to the second. Shorter recovers sooner and knocks more often at a node that is gone.
  uint32_t reconnect_min_ms = 20;
  uint32_t reconnect_max_ms = 1000;
  uint32_t silence_max_ms = 0;        // a peer not heard from for so long is dropped; 0: never; 4 pings within
  uint32_t drain_timeout_ms = 200;    // how long closing waits for messages under way
  uint32_t close_timeout_ms = 5'000;  // and then for UCX to end what it still holds
  // A payload whose transfer was cut off from this side may still be read by the (hung) peer. It is
  // kept from reuse for so long.
  uint32_t quarantine_ms = 5'000;
  // The progress thread polls, yielding, so long after the last activity; four times as long while UCX has a
  // transfer under way. Longer saves wake-ups and costs processor time.
  uint32_t spin_us = 50;
  // The answer to a large payload comes when the peer has taken all of it. So the progress thread polls on after it has
  // handed a dispatch or combine of `rendezvous_bytes` or more to UCX: 2 ns a byte (500 MB/s), but not longer than so.
  uint32_t spin_large_us = 2000;

  // The progress thread interrupts nobody when it wakes (`patient_thread.hpp`).
  bool patient = false;

  // How many handlers of idle actors run on the progress thread for a message that arrives (`handlers_most`): its own,
  // then those that it sets in motion. Each saves a wake-up of the scheduler's thread; many keep the progress thread
  // from the next message, for which it has the time only where the scheduler's thread would find no free CPU either.
  uint32_t handlers_most = 1;

  // Called on the progress thread; must not block; may call the wire.
  std::function<void(const peer_event&)> on_peer;
};

// Fails: invalid_argument (a field is out of range; the message names it).
result<void> validate(const ucx_wire_options& options);

// How long the progress thread polls after such a payload at least, ns. Pure.
uint64_t spin_after_ns(const ucx_wire_options& options, uint64_t payload_bytes);

// Counters since the start, beyond `wire_statistics`. Dropped messages by reason:
struct ucx_wire_counters {
  uint64_t malformed = 0;      // from peers: refused by validation
  uint64_t stale = 0;          // from or to an incarnation or session that is not current; fragments of given-up bulk
  uint64_t unaddressed = 0;    // no receiver at the slot
  uint64_t overflowed = 0;     // no memory for them, and too many waiting already
  uint64_t cut_off = 0;        // under way when the peer went
  uint64_t sequence_gaps = 0;  // times a header came out of order or one before it was lost
  uint64_t held = 0;           // messages and bulk fragments that wait for receive memory now
  uint64_t assemblies = 0;     // bulk messages of which fragments have come, and not yet all
  uint64_t quarantined = 0;    // buffers kept from reuse now
  uint64_t refused_greetings = 0;
  uint64_t bulk_fragments = 0;          // handed to UCX; an undivided bulk message counts as one
  uint64_t peers_up = 0;                // now
  uint64_t links = 0;                   // connections now; two for a peer only until one of them is given up
  uint64_t reconnections = 0;           // attempts to connect anew to a peer
  uint64_t receive_queues_blocked = 0;  // by a peer that died while it sent; all connections were then made anew
  uint64_t sleeps = 0;                  // times the progress thread went to sleep
};

}  // namespace troupe
