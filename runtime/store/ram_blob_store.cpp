#include "runtime/store/blob_store.hpp"

namespace troupe {

void ram_blob_store::put(const blob_key& key, blob block, std::function<void(bool)> stored) {
  const bool fits = block->size() <= bytes_max_;
  if (fits) {
    const std::lock_guard lock(mutex_);
    if (!blocks_.contains(key)) {
      while (bytes_ + block->size() > bytes_max_) drop(blocks_.find(by_age_.front()));
      bytes_ += block->size();
      blocks_[key] = {std::move(block), by_age_.insert(by_age_.end(), key)};
    }
  }
  stored(fits);
}

void ram_blob_store::get(const blob_key& key, std::function<void(blob)> found) {
  blob block;
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = blocks_.find(key); at != blocks_.end()) {
      block = at->second.block;
      by_age_.splice(by_age_.end(), by_age_, at->second.age);
    }
  }
  found(std::move(block));
}

void ram_blob_store::erase(const blob_key& key) {
  const std::lock_guard lock(mutex_);
  if (const auto at = blocks_.find(key); at != blocks_.end()) drop(at);
}

uint64_t ram_blob_store::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void ram_blob_store::drop(std::map<blob_key, entry>::iterator at) {
  bytes_ -= at->second.block->size();
  by_age_.erase(at->second.age);
  blocks_.erase(at);
}

}  // namespace troupe
