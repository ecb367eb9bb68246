// The receivers of one node, by endpoint slot.
//
// Owned by a wire. Any thread may attach, detach and deliver. A receiver is called without any lock
// held, so it may itself send, attach or detach; in exchange, a delivery that had begun may still
// call a receiver once after `detach` has returned.
#pragma once

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
  bool deliver(micro_batch message) const;

 private:
  mutable std::shared_mutex mutex_;
  std::vector<std::shared_ptr<const wire::receiver>> receivers_;  // by slot; grows to the highest one
};

}  // namespace troupe
