// The wire inside one process: delivery moves a pointer.
//
// A `local_switch` joins the local wires of one process; each `local_wire` is one node on it, and
// registers itself from construction to destruction. `send` calls the addressee's receiver on the
// calling thread. Used for a single node, for tests, and for several nodes in one process. Payloads
// are neither copied nor checksummed: the receiver gets the sender's own buffer.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "runtime/wire/slot_table.hpp"
#include "runtime/wire/wire.hpp"

namespace troupe {

class local_wire;

// Joins the nodes of a process. Any thread may use it.
class local_switch {
 public:
  local_switch();
  ~local_switch();
  local_switch(const local_switch&) = delete;
  local_switch& operator=(const local_switch&) = delete;

 private:
  friend class local_wire;
  struct node;

  std::shared_ptr<node> find(uint16_t id) const;

  mutable std::shared_mutex mutex_;
  std::unordered_map<uint16_t, std::shared_ptr<node>> nodes_;
};

class local_wire final : public wire {
 public:
  // Joins `network` as `node_id`; a lower incarnation of the same node is replaced.
  // Requires: no equal or higher incarnation of the node is on the switch.
  local_wire(std::shared_ptr<local_switch> network, uint16_t node_id, uint32_t incarnation);
  ~local_wire() override;
  local_wire(const local_wire&) = delete;
  local_wire& operator=(const local_wire&) = delete;

  void attach(uint16_t slot, receiver to) override;
  void detach(uint16_t slot) override;

  // Fails: unavailable (no such node, or another incarnation of it), invalid_argument (the header's
  // counts do not agree with the payload). A message to a slot without a receiver is dropped and
  // counted at the addressee.
  result<void> send(endpoint to, micro_batch message) override;

  wire_statistics statistics() const override;

 private:
  uint64_t next_sequence(uint16_t node_id, message_kind kind);

  const std::shared_ptr<local_switch> network_;
  const uint16_t node_id_;
  const uint32_t incarnation_;
  const std::shared_ptr<local_switch::node> self_;
  std::mutex sequences_mutex_;
  std::map<uint16_t, std::array<uint64_t, 3>> sequences_;  // next per destination and class
};

}  // namespace troupe
