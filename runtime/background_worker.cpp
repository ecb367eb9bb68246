#include "runtime/background_worker.hpp"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

namespace troupe {

namespace {

constexpr int background_priority = 10;  // "nice": what serves goes first

}  // namespace

background_worker::background_worker(std::function<void()> prepare)
    : thread_([this, prepare = std::move(prepare)] { work(prepare); }) {
  pthread_setname_np(thread_.native_handle(), "troupe-behind");
}

background_worker::~background_worker() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    jobs_.clear();
  }
  arrived_.notify_one();
  thread_.join();
}

void background_worker::run(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  arrived_.notify_one();
}

void background_worker::work(const std::function<void()>& prepare) {
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), background_priority);
  if (prepare) prepare();
  for (;;) {
    std::function<void()> job;
    {
      std::unique_lock lock(mutex_);
      arrived_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
      if (ending_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

}  // namespace troupe
