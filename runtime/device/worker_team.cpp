#include "runtime/device/worker_team.hpp"

#include "runtime/device/cpu_set.hpp"
#include "runtime/error.hpp"

namespace troupe {

namespace {

// A helper spins this often before it sleeps: stages follow each other within microseconds, and a
// wake-up costs more than that. Each turn yields, so that a busy core is given up at once.
constexpr int spins_before_sleep = 200;

}  // namespace

worker_team::worker_team(int threads, std::span<const int> cpus) : memory_(static_cast<size_t>(threads)) {
  TROUPE_CHECK(threads >= 1, "a worker team needs at least one thread");
  helpers_.reserve(static_cast<size_t>(threads - 1));
  for (int member = 1; member < threads; ++member)
    helpers_.emplace_back([this, member, own = std::vector<int>(cpus.begin(), cpus.end())] {
      pin_this_thread(own, static_cast<size_t>(member));
      help(member);
    });
}

worker_team::~worker_team() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    round_.fetch_add(1, std::memory_order_release);
  }
  start_.notify_all();
  for (auto& helper : helpers_) helper.join();
}

void worker_team::parallel(int count, function_ref<void(int, worker_memory&)> item) {
  if (count <= 0) return;
  if (count == 1 || helpers_.empty()) {
    for (int i = 0; i < count; ++i) item(i, memory_[0]);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    item_ = &item;
    count_ = count;
    next_item_.store(0, std::memory_order_relaxed);
    working_.store(static_cast<int>(helpers_.size()), std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_release);
  }
  start_.notify_all();
  work(0);
  while (working_.load(std::memory_order_acquire) != 0) std::this_thread::yield();
}

void worker_team::help(int member) {
  kernels::prepare_thread();
  uint64_t seen = 0;
  for (;;) {
    for (int spin = 0; spin < spins_before_sleep && round_.load(std::memory_order_acquire) == seen; ++spin)
      std::this_thread::yield();
    {
      std::unique_lock lock(mutex_);
      start_.wait(lock, [&] { return round_.load(std::memory_order_acquire) != seen; });
      seen = round_.load(std::memory_order_relaxed);
      if (stopping_) return;
    }
    work(member);
    working_.fetch_sub(1, std::memory_order_release);
  }
}

void worker_team::work(int member) {
  for (;;) {
    const int i = next_item_.fetch_add(1, std::memory_order_relaxed);
    if (i >= count_) return;
    (*item_)(i, memory_[static_cast<size_t>(member)]);
  }
}

}  // namespace troupe
