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
  version_.fetch_add(1, std::memory_order_release);
}

void slot_table::detach(uint16_t slot) {
  std::shared_ptr<const wire::receiver> removed;
  const std::unique_lock lock(mutex_);
  if (slot < receivers_.size()) receivers_[slot].swap(removed);
  version_.fetch_add(1, std::memory_order_release);
}

bool slot_table::deliver(micro_batch&& message) const {
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

bool slot_view::deliver(micro_batch&& message) {
  refresh();
  const uint16_t slot = message.header.destination_slot;
  if (slot >= receivers_.size() || !receivers_[slot] || !*receivers_[slot]) return false;
  (*receivers_[slot])(std::move(message));
  return true;
}

void slot_view::refresh() {
  if (table_.version_.load(std::memory_order_acquire) == version_) return;
  slot_table::receivers current;
  {
    const std::shared_lock lock(table_.mutex_);
    version_ = table_.version_.load(std::memory_order_relaxed);
    current = table_.receivers_;
  }
  receivers_.swap(current);
}

}  // namespace troupe
