#include "runtime/wire/shaped_wire.hpp"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>
#include <utility>

#include "runtime/wire/wire_time.hpp"

namespace troupe {

namespace {

constexpr uint64_t retry_ns = 200'000;  // between tries while the inner wire is exhausted
constexpr uint64_t no_event = std::numeric_limits<uint64_t>::max();

uint64_t bytes_on_link(const micro_batch& message) { return sizeof message.header + message.header.payload_bytes; }

}  // namespace

shaped_wire::shaped_wire(std::shared_ptr<wire> inner, shaped_wire_options options)
    : inner_(std::move(inner)), options_(std::move(options)), thread_([this] { run(); }) {}

shaped_wire::~shaped_wire() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

result<void> shaped_wire::send(endpoint to, micro_batch message) {
  const auto& shape = options_.links.find(options_.node, to.node);
  if (to.node == options_.node || shape.is_open()) return inner_->send(to, std::move(message));
  auto& header = message.header;
  header.payload_bytes = message.payload ? message.payload->size : 0;
  if (const char* wrong = wrong_counts(header); wrong != nullptr)
    return error{errc::invalid_argument, std::string("a micro-batch cannot be sent: ") + wrong};
  const size_t class_index = message_class(header.kind);
  const uint64_t bytes = bytes_on_link(message);
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    auto& link = link_to(to.node, shape);
    auto& load = link.on_the_way[class_index];
    // One message may exceed the limit, or it could never be sent.
    if (load.messages >= options_.messages_max ||
        (load.messages > 0 && load.bytes + bytes > options_.bytes_max[class_index]))
      return error{errc::exhausted,
                   "as much is on the way over the link to node " + std::to_string(to.node) + " as its limits allow"};
    ++load.messages;
    load.bytes += bytes;
    const uint64_t now_ns = wire_time_ns();
    if (header.send_time_ns == 0) header.send_time_ns = now_ns;
    link.queue.push(to, std::move(message), now_ns);
    wake = link.queue.next_event_ns().value_or(no_event) < sleeps_until_ns_;
    if (wake) sleeps_until_ns_ = 0;
  }
  if (wake) changed_.notify_one();
  return {};
}

// Requires: the lock is held.
shaped_wire::shaped_link& shaped_wire::link_to(uint16_t node, const link_shape& shape) {
  const link_identity identity{options_.node, node, options_.seed};
  return links_.try_emplace(node, identity, shape, options_.bulk_chunk_bytes).first->second;
}

void shaped_wire::run() {
  pthread_setname_np(pthread_self(), "troupe-links");
  prctl(PR_SET_TIMERSLACK, 1000UL);  // the default of 50 us would be seen in latencies
  std::unique_lock lock(mutex_);
  while (!ending_) {
    ++wake_ups_;
    bool retry = false;
    for (auto& [node, link] : links_) {
      while (auto one = link.queue.pop(wire_time_ns())) {
        auto& arrived = link.arrived[message_class(one->message.header.kind)];
        arrived.push_back(*std::move(one));
      }
      for (size_t i = 0; i < message_class_count; ++i) retry |= !hand_over(lock, link, i);
    }
    const uint64_t now_ns = wire_time_ns();
    const uint64_t next_ns = std::min(next_event_ns().value_or(no_event), retry ? now_ns + retry_ns : no_event);
    if (next_ns <= now_ns) continue;
    // A sender whose message comes earlier sets it to 0.
    sleeps_until_ns_ = next_ns;
    const auto awake = [this] { return ending_ || sleeps_until_ns_ == 0; };
    if (next_ns == no_event)
      changed_.wait(lock, awake);
    else
      changed_.wait_until(lock, std::chrono::steady_clock::time_point(std::chrono::nanoseconds(next_ns)), awake);
    sleeps_until_ns_ = 0;
  }
}

// Hands what has arrived to the inner wire, in order; returns false when that must be tried again. The
// lock is open meanwhile: only this thread takes from `arrived` or removes links (never).
bool shaped_wire::hand_over(std::unique_lock<std::mutex>& lock, shaped_link& from, size_t class_index) {
  auto& arrived = from.arrived[class_index];
  while (!arrived.empty() && !ending_) {
    auto& front = arrived.front();
    lock.unlock();
    const auto sent = inner_->send(front.to, front.message);
    lock.lock();
    if (!sent && sent.failure().code == errc::exhausted) return false;
    if (!sent) ++dropped_;
    auto& load = from.on_the_way[class_index];
    --load.messages;
    load.bytes -= bytes_on_link(front.message);
    arrived.pop_front();
  }
  return true;
}

// The earliest of all links. Requires: the lock is held.
std::optional<uint64_t> shaped_wire::next_event_ns() const {
  std::optional<uint64_t> next;
  for (const auto& [node, link] : links_)
    if (const auto event = link.queue.next_event_ns(); event && (!next || *event < *next)) next = event;
  return next;
}

wire_statistics shaped_wire::statistics() const {
  auto out = inner_->statistics();
  const std::lock_guard lock(mutex_);
  for (const auto& [node, link] : links_) {
    for (const auto& load : link.on_the_way)
      out.bytes_in_flight += load.bytes - load.messages * sizeof(micro_batch_header);
    out.link_busy_ns = std::max(out.link_busy_ns, link.queue.counters().busy_ns);
  }
  out.messages_dropped += dropped_;
  return out;
}

std::vector<link_statistics> shaped_wire::links() const {
  const std::lock_guard lock(mutex_);
  std::vector<link_statistics> out;
  for (const auto& [node, link] : links_) {
    auto& one = out.emplace_back(link_statistics{node, link.queue.shape(), link.queue.counters(), 0, 0});
    for (const auto& load : link.on_the_way) {
      one.messages_on_the_way += load.messages;
      one.bytes_on_the_way += load.bytes;
    }
  }
  return out;
}

uint64_t shaped_wire::wake_ups() const {
  const std::lock_guard lock(mutex_);
  return wake_ups_;
}

}  // namespace troupe
