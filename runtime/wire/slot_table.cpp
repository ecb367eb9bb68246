#include "runtime/wire/slot_table.hpp"

#include <mutex>
#include <utility>

namespace troupe {

void slot_table::attach(uint16_t slot, wire::receiver to) {
  // Declared before the lock, so that what is replaced dies after it: a receiver's destructor may drop
  // the last reference to an actor.
  auto receiver = std::make_shared<const wire::receiver>(std::move(to));
  const std::unique_lock lock(mutex_);
  if (receivers_.size() <= slot) receivers_.resize(size_t{slot} + 1);
  receivers_[slot].swap(receiver);
}

void slot_table::detach(uint16_t slot) {
  std::shared_ptr<const wire::receiver> removed;
  const std::unique_lock lock(mutex_);
  if (slot < receivers_.size()) receivers_[slot].swap(removed);
}

bool slot_table::deliver(micro_batch message) const {
  std::shared_ptr<const wire::receiver> receiver;
  {
    const std::shared_lock lock(mutex_);
    const uint16_t slot = message.header.destination_slot;
    if (slot < receivers_.size()) receiver = receivers_[slot];
  }
  if (!receiver || !*receiver) return false;
  (*receiver)(std::move(message));
  return true;
}

}  // namespace troupe
