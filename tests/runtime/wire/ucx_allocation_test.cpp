// The step loop allocates nothing, so neither may the wire once it has warmed up.
#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>

#include "tests/runtime/wire/fixture.hpp"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace {

std::atomic<uint64_t> allocations{0};

}  // namespace

// Replaced for the whole test program, to count. The compiler takes free() of what our own operator new
// has malloc'ed for a mismatch once it has inlined one of the two.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
void* operator new(size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* const made = std::malloc(size == 0 ? 1 : size); made != nullptr) return made;
  throw std::bad_alloc();
}
void* operator new[](size_t size) { return operator new(size); }
void operator delete(void* gone) noexcept { std::free(gone); }
void operator delete[](void* gone) noexcept { std::free(gone); }
void operator delete(void* gone, size_t) noexcept { std::free(gone); }
void operator delete[](void* gone, size_t) noexcept { std::free(gone); }
#pragma GCC diagnostic pop

namespace troupe {
namespace {

using namespace wire_test;

TEST_CASE("a wire that has warmed up allocates nothing for a message") {
  buffer_pool pool(uint64_t{64} << 20U);
  event_log events;
  const auto one = wire_of(options_of(1, 1, &events));
  const auto two = wire_of(options_of(2, 1));
  std::atomic<uint64_t> received{0};
  two->attach(5, [&](micro_batch) { ++received; });
  REQUIRE(one->connect(2, 1, two->listen_address()));
  REQUIRE(eventually([&] { return events.count(2, 1, true) == 1; }));
  uint64_t sent = 0;
  const auto stream = [&](int count) {
    for (int i = 0; i < count; ++i) {
      for (const uint64_t bytes : {0, 4096, 60'000, 200'000}) {
        micro_batch message;
        message.header.kind = message_kind::bulk;
        if (bytes != 0) message.payload = pool.acquire(bytes);
        if (!one->send({2, 5, 1}, std::move(message))) return false;
        ++sent;
      }
      while (sent - received > 8) std::this_thread::yield();
    }
    while (received != sent) std::this_thread::yield();
    return true;
  };
  // How much is in flight at most varies from run to run; each new maximum takes memory once.
  uint64_t allocated = 1;
  for (int attempt = 0; attempt < 20 && allocated != 0; ++attempt) {
    const uint64_t before = allocations;
    REQUIRE(stream(500));
    allocated = allocations - before;
  }
  CHECK(allocated == 0);
}

}  // namespace
}  // namespace troupe

#endif
