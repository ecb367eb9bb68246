#include "runtime/memory/buffer.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <new>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/memory/block_allocator.hpp"
#include "runtime/memory/huge_pages.hpp"

namespace troupe {
namespace {

TEST_CASE("a buffer has the size asked for, is aligned, and returns with its last reference") {
  buffer_pool pool(1 << 20);
  {
    const buffer_ref one = pool.acquire(1000);
    REQUIRE(one);
    CHECK(one->size == 1000);
    CHECK(one->capacity == 1024);
    CHECK(reinterpret_cast<uintptr_t>(one->data) % 64 == 0);
    CHECK(one.bytes().size() == 1000);
    buffer_ref two = one;
    buffer_ref three = std::move(two);
    CHECK_FALSE(two);
    CHECK(three->data == one->data);
    three = buffer_ref();
    CHECK(pool.bytes_in_use() == 1024);
  }
  CHECK(pool.bytes_in_use() == 0);
}

TEST_CASE("memory begins at a line, from 4 KiB on at a page, from 2 MiB on at a huge page") {
  for (const auto& [bytes, boundary] :
       {std::pair<size_t, size_t>{1, 64}, {5000, 4096}, {(size_t{2} << 20) + 1, size_t{2} << 20}}) {
    void* memory = allocate_on_huge_pages(bytes);
    CHECK(reinterpret_cast<uintptr_t>(memory) % boundary == 0);
    std::memset(memory, 1, bytes);
    std::free(memory);
  }
  CHECK_THROWS_AS(allocate_on_huge_pages(SIZE_MAX - 1), std::bad_alloc);
}

TEST_CASE("blocks of each size lie apart and on huge pages, which go when their last block is given back") {
  block_allocator blocks;
  std::mt19937 random(7);
  std::map<std::byte*, size_t> held;
  for (int i = 0; i < 2000; ++i) {
    if (random() % 2 == 0 || held.empty()) {
      const size_t size = size_t{256} << random() % 14;  // to 2 MiB
      std::byte* const block = blocks.take(size);
      REQUIRE(reinterpret_cast<uintptr_t>(block) % std::min<size_t>(size, 64) == 0);
      const auto after = held.lower_bound(block);
      REQUIRE((after == held.end() || block + size <= after->first));
      REQUIRE((after == held.begin() || std::prev(after)->first + std::prev(after)->second <= block));
      std::memset(block, i, size);
      held.emplace(block, size);
    } else {
      const auto one = std::next(held.begin(), static_cast<ptrdiff_t>(random() % held.size()));
      blocks.give_back(one->first, one->second);
      held.erase(one);
    }
  }
  for (const auto& [block, size] : held) blocks.give_back(block, size);
  CHECK(blocks.bytes_held() == 0);
}

TEST_CASE("a buffer that was given back is used again") {
  buffer_pool pool(1 << 20);
  const std::byte* first = pool.acquire(5000)->data;
  const buffer_ref again = pool.acquire(8000);
  CHECK(again->data == first);
  CHECK(again->size == 8000);
}

TEST_CASE("a spent budget gives empty references until something returns") {
  buffer_pool pool(4096);
  std::vector<buffer_ref> held;
  for (int i = 0; i < 4; ++i) held.push_back(pool.acquire(1024));
  CHECK(held.back());
  CHECK_FALSE(pool.acquire(1));
  held.pop_back();
  CHECK(pool.acquire(1));
}

TEST_CASE("cached buffers of other sizes make room when the budget needs it") {
  buffer_pool pool(1 << 20);
  {
    std::vector<buffer_ref> small;
    for (int i = 0; i < 1024; ++i) small.push_back(pool.acquire(1024));
    CHECK(small.back());
    CHECK_FALSE(pool.acquire(1));
  }
  CHECK(pool.acquire(1 << 20));
  CHECK(pool.acquire(1024));
}

TEST_CASE("sizes beyond the budget or of no size at all are handled") {
  buffer_pool pool(3000);
  CHECK_FALSE(pool.acquire(3001));
  CHECK_FALSE(pool.acquire(UINT64_MAX));
  CHECK_FALSE(pool.acquire(2500));  // its class, 4096, exceeds the budget
  const buffer_ref none = pool.acquire(0);
  REQUIRE(none);
  CHECK(none->size == 0);
}

TEST_CASE("threads may acquire, share and drop buffers at once") {
  buffer_pool pool(1 << 22);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t)
    threads.emplace_back([&pool, t] {
      std::vector<buffer_ref> held;
      for (unsigned i = 0; i < 5000; ++i) {
        auto taken = pool.acquire(256U << (i % 5));
        if (!taken) {
          held.clear();
          continue;
        }
        taken->data[0] = static_cast<std::byte>(t);
        held.push_back(taken);
        if (held.size() > 20) held.erase(held.begin(), held.begin() + 10);
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(pool.bytes_in_use() == 0);
}

TEST_CASE("references to one buffer may be dropped by different threads") {
  buffer_pool pool(1 << 20);
  for (int round = 0; round < 200; ++round) {
    buffer_ref shared = pool.acquire(512);
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) threads.emplace_back([copy = shared]() mutable { copy = buffer_ref(); });
    shared = buffer_ref();
    for (auto& thread : threads) thread.join();
    REQUIRE(pool.bytes_in_use() == 0);
  }
}

}  // namespace
}  // namespace troupe
