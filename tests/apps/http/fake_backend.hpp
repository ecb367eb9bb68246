// A backend that says what a test tells it to, from a thread of its own.
//
// The script of a request is a function of the request; each step may wait. Owned by a test, which
// must stop the server before it goes.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/api.hpp"

namespace troupe::http {

class fake_backend final : public api_backend {
 public:
  // Plays a request's events to the sink until `cancelled()` is true or it returns.
  using script =
      std::function<void(const generation_request&, const generation_sink&, const std::function<bool()>& cancelled)>;

  explicit fake_backend(script play) : play_(std::move(play)) {}
  ~fake_backend() override {
    for (auto& thread : threads_) {
      thread.join();
    }
  }

  // Events come inline from `submit` instead of from another thread.
  bool inline_events = false;
  std::atomic<bool> is_healthy{true};

  uint64_t submit(generation_request request, generation_sink sink) override {
    std::unique_lock lock(mutex_);
    const uint64_t id = ++last_id_;
    auto body = [this, id, request = std::move(request), sink = std::move(sink)] {
      play_(request, sink, [this, id] { return is_cancelled(id); });
    };
    if (inline_events) {
      lock.unlock();
      body();
    } else {
      threads_.emplace_back(std::move(body));
    }
    return id;
  }

  void cancel(uint64_t request) override {
    const std::lock_guard lock(mutex_);
    cancelled_.insert(request);
    changed_.notify_all();
  }

  // Whether so many requests are cancelled before a generous deadline.
  bool wait_for_cancels(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return cancelled_.size() >= count; });
  }
  size_t cancel_count() {
    const std::lock_guard lock(mutex_);
    return cancelled_.size();
  }
  size_t submit_count() {
    const std::lock_guard lock(mutex_);
    return last_id_;
  }

  std::string model_name() const override { return "troupe-tiny"; }
  uint64_t model_created_s() const override { return 1700000000; }
  bool healthy() const override { return is_healthy; }
  std::string cluster_json() const override { return R"({"nodes":1})"; }
  std::string metrics_text() const override { return "troupe_requests_total 7\n"; }
  std::string load_csv() const override { return "window,layer,expert,rows\n"; }
  std::string steps_text() const override { return "layer  rows\n"; }

 private:
  bool is_cancelled(uint64_t id) {
    const std::lock_guard lock(mutex_);
    return cancelled_.contains(id);
  }

  script play_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<uint64_t> cancelled_;
  uint64_t last_id_ = 0;
  std::vector<std::thread> threads_;
};

// The text the scripts below answer with, in pieces of one token each; it is not all ASCII.
inline const std::vector<std::string>& answer_pieces() {
  static const std::vector<std::string> pieces = {"The", " \"quick\"", " br\u00f8wn", "", "\n\u72d0", " jumps", "."};
  return pieces;
}

inline std::string answer_text() {
  std::string text;
  for (const auto& piece : answer_pieces()) {
    text += piece;
  }
  return text;
}

inline generation_delta one_token(uint32_t index, std::string text) {
  return {.index = index,
          .text = std::move(text),
          .tokens = {static_cast<int32_t>(100 + index)},
          .logprobs = {-0.5F * static_cast<float>(index)}};
}

// Answers at once with the pieces, cut by max_tokens, with the seed asked for or 7.
inline void play_answer(const generation_request& request, const generation_sink& sink, const std::function<bool()>&) {
  sink(generation_accepted{.request = 42, .prompt_tokens = 5, .seed = request.seed.value_or(7)});
  const auto& pieces = answer_pieces();
  const auto count = std::min<size_t>(pieces.size(), request.max_tokens.value_or(1000));
  for (uint32_t i = 0; i < count; ++i) {
    sink(one_token(i, pieces[i]));
  }
  sink(generation_finished{.reason = count < pieces.size() ? finish_reason::length : finish_reason::stop,
                           .completion_tokens = static_cast<uint32_t>(count)});
}

// Answers with one token after another until it is cancelled.
inline void play_forever(const generation_request&, const generation_sink& sink,
                         const std::function<bool()>& cancelled) {
  sink(generation_accepted{.request = 1, .prompt_tokens = 1, .seed = 1});
  for (uint32_t i = 0; !cancelled(); ++i) {
    sink(one_token(i, "x"));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Accepts and then says nothing until it is cancelled.
inline void play_silence(const generation_request&, const generation_sink& sink,
                         const std::function<bool()>& cancelled) {
  sink(generation_accepted{.request = 1, .prompt_tokens = 1, .seed = 1});
  while (!cancelled()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

inline fake_backend::script play_failure(errc code) {
  return [code](const generation_request&, const generation_sink& sink, const std::function<bool()>&) {
    sink(generation_failed{{code, "A sentence."}});
  };
}

}  // namespace troupe::http
