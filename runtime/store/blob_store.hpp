// The blob store seam: immutable blocks by content key (KV prefixes, expert weights).
//
// `put` of a key that is there changes nothing; a block never changes, so every copy is as good as any.
// Answers arrive through a callback, at once or later, on a thread of the store's choosing; the callback
// only sends a message. A lost block is a miss, never an error. Implementations: RAM here; disk, remote
// and modelled stores follow with the KV tiers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace troupe {

// 128 bits of a content hash.
using blob_key = std::array<uint64_t, 2>;
using blob = std::shared_ptr<const std::vector<std::byte>>;

class blob_store {
 public:
  virtual ~blob_store() = default;

  // `stored` hears whether the block is kept (false: no room for one of this size).
  virtual void put(const blob_key& key, blob block, std::function<void(bool stored)> stored) = 0;
  // `found` gets the block, or null on a miss.
  virtual void get(const blob_key& key, std::function<void(blob)> found) = 0;
  virtual void erase(const blob_key& key) = 0;
};

// Blocks in memory within a byte budget; the least recently used go first. Any thread.
class ram_blob_store final : public blob_store {
 public:
  explicit ram_blob_store(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  void put(const blob_key& key, blob block, std::function<void(bool)> stored) override;
  void get(const blob_key& key, std::function<void(blob)> found) override;
  void erase(const blob_key& key) override;

  uint64_t bytes() const;

 private:
  struct entry {
    blob block;
    std::list<blob_key>::iterator age;
  };
  void drop(std::map<blob_key, entry>::iterator at);

  const uint64_t bytes_max_;
  mutable std::mutex mutex_;
  std::map<blob_key, entry> blocks_;
  std::list<blob_key> by_age_;  // oldest first
  uint64_t bytes_ = 0;
};

}  // namespace troupe
