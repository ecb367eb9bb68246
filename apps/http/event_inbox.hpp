// Carries a request's events from the runtime's threads to the connection that waits for them.
//
// The sink that the backend holds owns a reference; the connection owns another and closes the inbox
// when it is done. After `close` nothing is kept and nobody is woken, so a late event of a cancelled
// request finds no connection and no io_context to touch. Many events that come while the connection's
// thread is busy are taken, and written to the socket, together.
#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <utility>
#include <variant>
#include <vector>

#include "actors/api.hpp"

namespace troupe::http {

class event_inbox {
 public:
  // `wake` is called on the thread of a `push`, under the lock: it must only post. It is called again
  // only after a `take`. `bytes_max` bounds what waits.
  event_inbox(std::function<void()> wake, size_t bytes_max) : wake_(std::move(wake)), bytes_max_(bytes_max) {}

  // Any thread. Never blocks for longer than another push or take.
  void push(generation_event event) {
    const std::lock_guard lock(mutex_);
    if (closed_ || overflowed_) return;
    bytes_ += size_of(event);
    overflowed_ = bytes_ > bytes_max_;
    if (!overflowed_) {
      events_.push_back(std::move(event));
    }
    if (!woken_) {
      woken_ = true;
      wake_();
    }
  }

  // The events since the last `take`, in order. `overflowed`: some were dropped, the request is lost.
  std::vector<generation_event> take(bool& overflowed) {
    const std::lock_guard lock(mutex_);
    woken_ = false;
    bytes_ = 0;
    overflowed = overflowed_;
    return std::exchange(events_, {});
  }

  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    events_.clear();
    wake_ = nullptr;
  }

 private:
  static size_t size_of(const generation_event& event) {
    const auto* delta = std::get_if<generation_delta>(&event);
    return sizeof(event) + (delta == nullptr ? 0 : delta->text.size() + 8 * delta->tokens.size());
  }

  std::mutex mutex_;
  std::function<void()> wake_;
  std::vector<generation_event> events_;
  size_t bytes_ = 0;
  size_t bytes_max_;
  bool woken_ = false;
  bool overflowed_ = false;
  bool closed_ = false;
};

}  // namespace troupe::http
