#include "runtime/store/blob_store.hpp"

#include <doctest/doctest.h>

namespace troupe {
namespace {

blob block_of(size_t bytes, int value) {
  return std::make_shared<const std::vector<std::byte>>(bytes, static_cast<std::byte>(value));
}

blob look_up(blob_store& store, uint64_t key) {
  blob found;
  store.get({key, 0}, [&](blob block) { found = std::move(block); });
  return found;
}

bool keep(blob_store& store, uint64_t key, blob block) {
  bool kept = false;
  store.put({key, 0}, std::move(block), [&](bool stored) { kept = stored; });
  return kept;
}

}  // namespace

TEST_CASE("a block comes back as it was put, and a second put of its key changes nothing") {
  ram_blob_store store(100);
  CHECK(look_up(store, 1) == nullptr);
  CHECK(keep(store, 1, block_of(40, 7)));
  CHECK(keep(store, 1, block_of(40, 8)));
  CHECK(*look_up(store, 1) == *block_of(40, 7));
  CHECK(store.bytes() == 40);
  store.erase({1, 0});
  CHECK(look_up(store, 1) == nullptr);
  CHECK(store.bytes() == 0);
}

TEST_CASE("the budget holds, and the least recently used block goes first") {
  ram_blob_store store(100);
  keep(store, 1, block_of(40, 1));
  keep(store, 2, block_of(40, 2));
  const blob held = look_up(store, 1);
  keep(store, 3, block_of(40, 3));
  CHECK(look_up(store, 2) == nullptr);
  CHECK(look_up(store, 1) != nullptr);
  CHECK(store.bytes() == 80);
  CHECK(!keep(store, 4, block_of(101, 4)));
  store.erase({1, 0});
  CHECK(held->size() == 40);  // who holds a block keeps it
}

}  // namespace troupe
