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

// A round's word: helpers in it, a bit that says that no more may enter, and its number.
constexpr uint64_t helpers_in = 0xffff, closed = uint64_t{1} << 16, one_round = uint64_t{1} << 17;
uint64_t number_of(uint64_t round) { return round / one_round; }

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
    : memory_(static_cast<size_t>(threads)), shares_(static_cast<size_t>(threads)), round_(closed) {
  TROUPE_CHECK(threads >= 1, "a worker team needs at least one thread");
  helpers_.reserve(static_cast<size_t>(threads - 1));
  for (int member = 1; member < threads; ++member)
    helpers_.emplace_back([this, member, own = std::vector<int>(cpus.begin(), cpus.end())] {
      pin_this_thread(own, static_cast<size_t>(member));
      help(member);
    });
}

worker_team::~worker_team() {
  end_errand();
  stopping_.store(true);
  wake_helpers();
  for (auto& helper : helpers_) helper.join();
}

// A helper that goes to sleep says so before it looks for work once more, and the leader says what work there is before
// it looks for sleepers: one of them sees the other.
void worker_team::wake_helpers() {
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
  round_.store((number_of(round_.load(std::memory_order_relaxed)) + 1) * one_round);
  wake_helpers();
  work(0);
  // Every item has been taken. Those who came are waited for.
  round_.fetch_or(closed);
  while (!wait_briefly([this] { return (round_.load(std::memory_order_acquire) & helpers_in) == 0; })) {}
}

// Enters the round under way unless it is over; `seen` becomes its number.
bool worker_team::enter_round(uint64_t& seen) {
  uint64_t round = round_.load(std::memory_order_relaxed);
  do {
    seen = number_of(round);
    if ((round & closed) != 0) return false;
  } while (!round_.compare_exchange_weak(round, round + 1, std::memory_order_acquire, std::memory_order_relaxed));
  return true;
}

void worker_team::send_on_errand(const function_ref<void()>& errand) {
  TROUPE_CHECK(size() > 1 && errand_done(), "a team was sent on an errand for which it has no helper");
  on_errand_.store(true, std::memory_order_relaxed);
  errand_.store(&errand);
  wake_helpers();
}

void worker_team::end_errand() {
  run_errand();
  while (!wait_briefly([this] { return errand_done(); })) {}
}

void worker_team::wait_for_errand(function_ref<bool()> enough) {
  while (!wait_briefly([&] { return errand_done() || enough(); })) run_errand();
}

// Runs the errand if there is one and nobody else does.
void worker_team::run_errand() {
  if (errand_.load(std::memory_order_relaxed) == nullptr) return;
  const auto* errand = errand_.exchange(nullptr, std::memory_order_acquire);
  if (errand == nullptr) return;
  (*errand)();
  on_errand_.store(false, std::memory_order_release);
}

void worker_team::help(int member) {
  kernels::prepare_thread();
  for (uint64_t seen = 0;;) {
    const auto called = [&] {
      return number_of(round_.load()) != seen || errand_.load() != nullptr || stopping_.load();
    };
    if (!wait_briefly(called)) {
      std::unique_lock lock(mutex_);
      asleep_.fetch_add(1);
      start_.wait(lock, called);
      asleep_.fetch_sub(1);
    }
    if (stopping_.load()) return;
    run_errand();
    if (number_of(round_.load(std::memory_order_relaxed)) == seen || !enter_round(seen)) continue;
    work(member);
    round_.fetch_sub(1, std::memory_order_release);
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
