#include "runtime/device/worker_team.hpp"

#include <algorithm>

#include "runtime/device/cpu_set.hpp"
#include "runtime/error.hpp"

namespace troupe {

namespace {

// Sections of a stage follow each other within microseconds, and waking a sleeper costs more than that. So whoever
// waits pauses this often, then gives up its core this often, and a helper sleeps only then: about 50 us.
constexpr int pauses = 500;
constexpr int yields = 50;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Waits briefly until `done`; returns whether it is.
template <class Condition>
bool wait_briefly(Condition done) {
  for (int i = 0; i < pauses; ++i) {
    if (done()) return true;
    pause();
  }
  for (int i = 0; i < yields; ++i) {
    if (done()) return true;
    std::this_thread::yield();
  }
  return done();
}

uint64_t range_of(uint32_t begin, uint32_t end) { return uint64_t{begin} << 32 | end; }
uint32_t begin_of(uint64_t range) { return static_cast<uint32_t>(range >> 32); }
uint32_t end_of(uint64_t range) { return static_cast<uint32_t>(range); }

// Takes an item from either end of a share; negative: it is empty. `next` becomes the one that would follow.
int take(std::atomic<uint64_t>& share, bool last, int& next) {
  uint64_t range = share.load(std::memory_order_relaxed);
  for (;;) {
    const uint32_t begin = begin_of(range), end = end_of(range);
    if (begin >= end) return -1;
    const uint64_t rest = last ? range_of(begin, end - 1) : range_of(begin + 1, end);
    if (!share.compare_exchange_weak(range, rest, std::memory_order_relaxed)) continue;
    next = begin + 1 == end ? -1 : static_cast<int>(last ? end - 2 : begin + 1);
    return static_cast<int>(last ? end - 1 : begin);
  }
}

}  // namespace

worker_team::worker_team(int threads, std::span<const int> cpus)
    : memory_(static_cast<size_t>(threads)), shares_(static_cast<size_t>(threads)) {
  TROUPE_CHECK(threads >= 1, "a worker team needs at least one thread");
  helpers_.reserve(static_cast<size_t>(threads - 1));
  for (int member = 1; member < threads; ++member)
    helpers_.emplace_back([this, member, own = std::vector<int>(cpus.begin(), cpus.end())] {
      pin_this_thread(own, static_cast<size_t>(member));
      help(member);
    });
}

worker_team::~worker_team() {
  stopping_.store(true);
  begin_round();
  for (auto& helper : helpers_) helper.join();
}

// A helper that goes to sleep says so before it looks at the round once more, and the leader counts the round up
// before it looks for sleepers: one of them sees the other.
void worker_team::begin_round() {
  round_.fetch_add(1);
  if (asleep_.load() == 0) return;
  { const std::lock_guard lock(mutex_); }
  start_.notify_all();
}

void worker_team::alone(const char* section, int count, function_ref<void(int, worker_memory&)> item) {
  if (listener_ != nullptr) listener_->begins(section);
  for (int i = 0; i < count; ++i) item(i, memory_[0]);
}

void worker_team::parallel(const char* section, int count, function_ref<void(int, worker_memory&)> item) {
  parallel_runs(section, count, [&](int i, const item_run&, worker_memory& memory) { item(i, memory); });
}

void worker_team::parallel_runs(const char* section, int count, run_of_items item) {
  if (listener_ != nullptr) listener_->begins(section);
  item_ = &item;
  const int members = size();
  // One item, or one thread: nobody else is called.
  const int shares = count <= 1 ? 1 : members;
  for (int member = 0; member < members; ++member) {
    const auto at = [&](int part) { return static_cast<uint32_t>(int64_t{count} * std::min(part, shares) / shares); };
    shares_[static_cast<size_t>(member)].left.store(range_of(at(member), at(member + 1)), std::memory_order_relaxed);
  }
  if (shares == 1) {
    work(0);
    return;
  }
  working_.store(static_cast<int>(helpers_.size()), std::memory_order_relaxed);
  begin_round();
  work(0);
  while (!wait_briefly([this] { return working_.load(std::memory_order_acquire) == 0; })) {}
}

void worker_team::help(int member) {
  kernels::prepare_thread();
  for (uint64_t seen = 0;; ++seen) {
    const auto called = [&] { return round_.load() != seen; };
    if (!wait_briefly(called)) {
      std::unique_lock lock(mutex_);
      asleep_.fetch_add(1);
      start_.wait(lock, called);
      asleep_.fetch_sub(1);
    }
    if (stopping_.load()) return;
    work(member);
    working_.fetch_sub(1, std::memory_order_release);
  }
}

void worker_team::work(int member) {
  auto& memory = memory_[static_cast<size_t>(member)];
  auto& own = shares_[static_cast<size_t>(member)].left;
  item_run run{static_cast<int>(begin_of(own.load(std::memory_order_relaxed)))};
  for (int i; (i = take(own, false, run.next)) >= 0;) (*item_)(i, run, memory);
  for (int other = 1; other < size(); ++other) {
    auto& left = shares_[static_cast<size_t>((member + other) % size())].left;
    for (int i; (i = take(left, true, run.next)) >= 0;) {
      run.begin = i;
      (*item_)(i, run, memory);
    }
  }
}

}  // namespace troupe
