// What the tests of the UCX wire share: waiting without precise timings, recording, other processes.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/wire/ucx_wire.hpp"

namespace troupe::wire_test {

using namespace std::chrono_literals;

// Generous: the machine is busy.
inline bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds deadline = 30s) {
  const auto end = std::chrono::steady_clock::now() + deadline;
  while (std::chrono::steady_clock::now() < end) {
    if (condition()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return condition();
}

class event_log {
 public:
  std::function<void(const peer_event&)> recorder() {
    return [this](const peer_event& event) {
      const std::lock_guard lock(mutex_);
      events_.push_back(event);
    };
  }
  size_t count(uint16_t node, uint32_t incarnation, bool up) const {
    const std::lock_guard lock(mutex_);
    size_t found = 0;
    for (const auto& event : events_)
      if (event.node == node && event.incarnation == incarnation && event.up == up) ++found;
    return found;
  }
  std::string last_reason() const {
    const std::lock_guard lock(mutex_);
    return events_.empty() ? "" : events_.back().reason;
  }
  bool has_reason(const std::string& part) const {
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(events_,
                               [&](const auto& event) { return event.reason.find(part) != std::string::npos; });
  }
  uint16_t last_unit() const {
    const std::lock_guard lock(mutex_);
    return events_.empty() ? uint16_t{0} : events_.back().unit;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<peer_event> events_;
};

inline ucx_wire_options options_of(uint16_t node, uint32_t incarnation, event_log* events = nullptr) {
  ucx_wire_options options;
  options.node = node;
  options.incarnation = incarnation;
  options.unit = static_cast<uint16_t>(100 + node);
  if (events != nullptr) options.on_peer = events->recorder();
  return options;
}

inline std::unique_ptr<ucx_wire> wire_of(ucx_wire_options options) {
  auto made = ucx_wire::make(std::move(options));
  if (!made) FAIL(made.failure().message);
  return std::move(*made);
}

// A bulk message whose bytes follow from `seed`, and the check of it.
inline micro_batch patterned(buffer_pool& pool, uint64_t bytes, uint64_t seed) {
  micro_batch message;
  message.header.kind = message_kind::bulk;
  message.header.step = seed;
  if (bytes == 0) return message;
  while (!message.payload) {
    message.payload = pool.acquire(bytes);
    if (!message.payload) std::this_thread::yield();
  }
  auto* const data = message.payload->data;
  uint64_t word = seed * 0x9e3779b97f4a7c15U + 1;
  for (uint64_t i = 0; i < bytes; i += 8) {
    word = word * 6364136223846793005U + 1442695040888963407U;
    std::memcpy(data + i, &word, std::min<uint64_t>(8, bytes - i));
  }
  return message;
}

inline bool is_patterned(const micro_batch& message) {
  const uint64_t bytes = message.payload ? message.payload->size : 0;
  if (bytes != message.header.payload_bytes) return false;
  uint64_t word = message.header.step * 0x9e3779b97f4a7c15U + 1;
  for (uint64_t i = 0; i < bytes; i += 8) {
    word = word * 6364136223846793005U + 1442695040888963407U;
    if (std::memcmp(message.payload->data + i, &word, std::min<uint64_t>(8, bytes - i)) != 0) return false;
  }
  return true;
}

// The counters for a failure's message.
inline std::string describe(const ucx_wire& wire) {
  const auto s = wire.statistics();
  const auto c = wire.counters();
  char text[512];
  std::snprintf(
      text, sizeof text,
      "sent %zu received %zu in flight %zu malformed %zu stale %zu unaddressed %zu overflowed %zu cut off %zu "
      "gaps %zu held %zu assemblies %zu refused greetings %zu up %zu links %zu reconnections %zu",
      size_t{s.messages_sent}, size_t{s.messages_received}, size_t{s.bytes_in_flight}, size_t{c.malformed},
      size_t{c.stale}, size_t{c.unaddressed}, size_t{c.overflowed}, size_t{c.cut_off}, size_t{c.sequence_gaps},
      size_t{c.held}, size_t{c.assemblies}, size_t{c.refused_greetings}, size_t{c.peers_up}, size_t{c.links},
      size_t{c.reconnections});
  return text;
}

// Sends, waiting while the limits are reached.
inline result<void> send_patiently(wire& from, endpoint to, const micro_batch& message) {
  const auto end = std::chrono::steady_clock::now() + 60s;
  for (;;) {
    auto sent = from.send(to, message);
    if (sent || sent.failure().code != errc::exhausted || std::chrono::steady_clock::now() > end) return sent;
    std::this_thread::yield();
  }
}

struct pair_of_wires {
  buffer_pool pool{uint64_t{64} << 20U};  // outlives the wires
  event_log events_one;
  event_log events_two;
  std::unique_ptr<ucx_wire> one;
  std::unique_ptr<ucx_wire> two;

  explicit pair_of_wires(const std::function<void(ucx_wire_options&)>& adjust = {}) {
    auto options_one = options_of(1, 11, &events_one);
    auto options_two = options_of(2, 22, &events_two);
    if (adjust) {
      adjust(options_one);
      adjust(options_two);
    }
    one = wire_of(options_one);
    two = wire_of(options_two);
  }
  void connect() {
    REQUIRE(one->connect(2, 22, two->listen_address()));
    REQUIRE(eventually([&] { return events_one.count(2, 22, true) == 1 && events_two.count(1, 11, true) == 1; }));
  }
  static constexpr endpoint at_one{1, 5, 11};
  static constexpr endpoint at_two{2, 5, 22};
};

// `settle` of `two` waits for a delivery that had begun, and for none on the thread that delivers.
inline void check_settling(pair_of_wires& pair) {
  std::promise<void> begun;
  std::atomic<bool> settling{false};
  std::atomic<bool> over{false};
  pair.two->attach(5, [&](const micro_batch&) {
    pair.two->settle();
    begun.set_value();
    while (!settling) std::this_thread::yield();
    std::this_thread::sleep_for(20ms);  // in which a `settle` that does not wait would return
    over = true;
  });
  REQUIRE(pair.one->send(pair.at_two, patterned(pair.pool, 100, 1)));
  begun.get_future().wait();
  pair.two->detach(5);
  settling = true;
  pair.two->settle();
  CHECK(over);
}

// What is logged during its lifetime, which may outlast no wire that logs.
class captured_log {
 public:
  captured_log() : sink_(std::make_shared<sink>()), before_(spdlog::default_logger()) {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("captured", sink_));
  }
  ~captured_log() { spdlog::set_default_logger(before_); }
  captured_log(const captured_log&) = delete;
  captured_log& operator=(const captured_log&) = delete;

  bool has(const std::string& part) const { return text().find(part) != std::string::npos; }
  std::string text() const { return sink_->text(); }

 private:
  class sink : public spdlog::sinks::base_sink<std::mutex> {
   public:
    std::string text() {
      const std::lock_guard lock(mutex_);
      return text_;
    }

   private:
    void sink_it_(const spdlog::details::log_msg& message) override {
      text_.append(message.payload.data(), message.payload.size());
      text_ += '\n';
    }
    void flush_() override {}
    std::string text_;
  };
  const std::shared_ptr<sink> sink_;
  const std::shared_ptr<spdlog::logger> before_;
};

// A node in a process of its own (see peer/wire_peer.cpp).
class peer_process {
 public:
  peer_process(uint16_t node, uint32_t incarnation, const std::string& transports = "posix,cma,tcp") {
    int out[2];
    REQUIRE(pipe2(out, O_CLOEXEC) == 0);
    const std::string program = std::string(TROUPE_BINARY_DIR) + "/bin/wire_peer";
    const std::string node_text = std::to_string(node);
    const std::string incarnation_text = std::to_string(incarnation);
    pid_ = fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      dup2(out[1], 1);
      execl(program.c_str(), program.c_str(), node_text.c_str(), incarnation_text.c_str(), transports.c_str(),
            static_cast<char*>(nullptr));
      _exit(127);
    }
    ::close(out[1]);
    char letter = 0;
    while (read(out[0], &letter, 1) == 1 && letter != '\n') address_ += letter;
    ::close(out[0]);
    REQUIRE(!address_.empty());
  }
  ~peer_process() { end(); }
  peer_process(const peer_process&) = delete;
  peer_process& operator=(const peer_process&) = delete;

  const std::string& address() const { return address_; }
  // Returns when it has stopped.
  void stop() const {
    kill(pid_, SIGSTOP);
    waitpid(pid_, nullptr, WUNTRACED);
  }
  void go_on() const { kill(pid_, SIGCONT); }
  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    kill(pid_, SIGCONT);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  std::string address_;
};

}  // namespace troupe::wire_test
