// Bulk messages that are coming in fragments.
//
// Owned by a wire's receiver. Says which message a fragment belongs to and what is still missing; knows
// nothing of UCX. What a peer says of a fragment is checked here before anything is done with it.
// Progress thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/wire/micro_batch.hpp"
#include "runtime/wire/ucx_peer.hpp"

namespace troupe {

// A fragment that waits until its message has memory, and then for its turn; the receiver's own type
// derives from it.
struct waiting_fragment {
  waiting_fragment* next_fragment = nullptr;
};

struct bulk_assembly {
  micro_batch message;  // `detail` is 0; the payload is empty until there is memory for all of it
  ucx_peer* peer = nullptr;
  uint64_t chunk_bytes = 0;  // of its fragments, the last one excepted
  uint64_t bytes_missing = 0;
  uint32_t transfers = 0;       // fragments on their way into the payload, or that wait for their turn
  bool given_up = false;        // gone as soon as no transfer is left
  std::vector<bool> announced;  // by fragment: it has come, though perhaps not its bytes
  waiting_fragment* waiting_first = nullptr;
  waiting_fragment* waiting_last = nullptr;
};

// What is wrong with a fragment of `size` bytes under this header, or null. `chunk_bytes` is the size of
// its sender's fragments.
const char* wrong_fragment(const micro_batch_header& header, uint64_t size, uint64_t chunk_bytes);

class bulk_assemblies {
 public:
  // The message of that sequence number which is coming from a peer, or null.
  bulk_assembly* find(const ucx_peer& peer, uint64_t sequence) const;

  // Requires: `find` knows none; the header is that of a right fragment of the peer's chunk size.
  bulk_assembly& open(const micro_batch_header& header, ucx_peer& peer);

  // Whether that fragment agrees with the others of its message and has not come before; notes it.
  // Requires: it is a right fragment of the message's chunk size.
  static bool announce(bulk_assembly& whole, const micro_batch_header& header);

  // Drops its payload reference.
  void close(bulk_assembly& whole);

  // One of the peer's that is not given up, or null.
  bulk_assembly* any_of(const ucx_peer& peer) const;
  size_t size() const { return open_.size(); }

 private:
  std::vector<std::unique_ptr<bulk_assembly>> open_;
};

}  // namespace troupe
