// The receivers of one node, by endpoint slot.
//
// Owned by a wire. Any thread may attach, detach and deliver; a thread that delivers all the time does it
// through a `slot_view` of its own, which takes no lock. A receiver is called without any lock held, so
// it may itself send, attach or detach; in exchange, a delivery that had begun may still call a receiver
// once after `detach` has returned.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <vector>

#include "runtime/wire/wire.hpp"

namespace troupe {

class slot_table {
 public:
  void attach(uint16_t slot, wire::receiver to);
  void detach(uint16_t slot);

  // Calls the receiver of the header's destination slot. False, and the message is gone, when nobody
  // is attached there.
  bool deliver(micro_batch&& message) const;

 private:
  friend class slot_view;
  using receivers = std::vector<std::shared_ptr<const wire::receiver>>;  // by slot, up to the highest one

  mutable std::shared_mutex mutex_;
  receivers receivers_;
  std::atomic<uint64_t> version_{0};  // changes with `receivers_`
};

// One thread's copy of a slot table, refreshed when the table has changed.
class slot_view {
 public:
  explicit slot_view(const slot_table& table) : table_(table) {}

  // As `slot_table::deliver`.
  bool deliver(micro_batch&& message);

  // Lets go of receivers that were detached; call it now and then when nothing is delivered.
  // Requires: no delivery of this view is under way.
  void refresh();

 private:
  const slot_table& table_;
  slot_table::receivers receivers_;
  uint64_t version_ = 0;
};

}  // namespace troupe
