#include "runtime/wire/link_queue.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/compute.hpp"

namespace troupe {

link_queue::link_queue(link_identity link, link_shape shape, uint64_t bulk_chunk_bytes)
    : link_(link), shape_(shape), bulk_chunk_bytes_(bulk_chunk_bytes) {
  TROUPE_CHECK(bulk_chunk_bytes > 0, "a link's bulk chunks must have a size");
}

void link_queue::push(endpoint to, micro_batch message, uint64_t now_ns) {
  // What could start before now has started; what starts now competes with this message.
  if (now_ns > 0) advance(now_ns - 1);
  auto& queue = message_class(message.header.kind) == message_class(message_kind::bulk) ? bulk_ : urgent_;
  const uint64_t bytes = sizeof message.header + message.header.payload_bytes;
  queue.push_back({{to, std::move(message)}, bytes, now_ns, pushed_++, false});
  ++size_;
}

std::optional<uint64_t> link_queue::next_event_ns() const {
  if (empty()) return std::nullopt;
  uint64_t next = std::numeric_limits<uint64_t>::max();
  for (const auto& queue : travelling_)
    if (!queue.empty()) next = std::min(next, queue.front().arrival_ns);
  if (!idle()) {
    const uint64_t start_ns = next_start_ns();
    const auto& first = urgent_is_next(start_ns) ? urgent_.front() : bulk_.front();
    next = std::min(next, start_ns + shape_.transfer_ns(first.bytes));
  }
  return next;
}

std::optional<link_message> link_queue::pop(uint64_t now_ns) {
  advance(now_ns);
  std::deque<travelling>* first = nullptr;
  const auto order = [](const travelling& one) { return std::pair(one.arrival_ns, one.departure); };
  for (auto& queue : travelling_)
    if (!queue.empty() && (first == nullptr || order(queue.front()) < order(first->front()))) first = &queue;
  if (first == nullptr || first->front().arrival_ns > now_ns) return std::nullopt;
  link_message arrived = std::move(first->front().item);
  first->pop_front();
  --size_;
  return arrived;
}

void link_queue::clear() {
  urgent_.clear();
  bulk_.clear();
  for (auto& queue : travelling_) queue.clear();
  size_ = 0;
}

// When the link is free and something waits for it. Requires: something waits.
uint64_t link_queue::next_start_ns() const {
  uint64_t pushed_ns = std::numeric_limits<uint64_t>::max();
  for (const auto* queue : {&urgent_, &bulk_})
    if (!queue->empty()) pushed_ns = std::min(pushed_ns, queue->front().pushed_ns);
  return std::max(free_ns_, pushed_ns);
}

bool link_queue::urgent_is_next(uint64_t start_ns) const {
  return !urgent_.empty() && (bulk_.empty() || urgent_.front().pushed_ns <= start_ns);
}

// Starts everything that starts by `now_ns`.
void link_queue::advance(uint64_t now_ns) {
  while (!idle()) {
    const uint64_t start_ns = next_start_ns();
    if (start_ns > now_ns) return;
    if (urgent_is_next(start_ns))
      take_link(urgent_, start_ns, std::numeric_limits<uint64_t>::max());
    else
      take_link(bulk_, start_ns, bulk_chunk_bytes_);
  }
}

// The front of `from` occupies the link with up to `bytes_max` of its bytes, and leaves with its last.
void link_queue::take_link(std::deque<waiting>& from, uint64_t start_ns, uint64_t bytes_max) {
  auto& front = from.front();
  const uint64_t bytes = std::min(front.bytes, bytes_max);
  const uint64_t occupied_ns = shape_.occupied_ns(bytes);
  free_ns_ = start_ns + occupied_ns;
  counters_.busy_ns += occupied_ns;
  counters_.bytes += bytes;
  if (!front.started) counters_.wait_ns += start_ns - front.pushed_ns;
  front.started = true;
  front.bytes -= bytes;
  if (front.bytes > 0) return;
  ++counters_.messages;
  const size_t index = message_class(front.item.message.header.kind);
  auto& last_ns = last_arrival_ns_[index];
  last_ns = std::max(last_ns, free_ns_ + shape_.latency_ns() + jitter_ns(front.number));
  travelling_[index].push_back({std::move(front.item), last_ns, departed_++});
  from.pop_front();
}

uint64_t link_queue::jitter_ns(uint64_t number) const {
  const uint64_t jitter_max_ns = shape_.jitter_ns();
  if (jitter_max_ns == 0) return 0;
  const uint32_t key[2] = {static_cast<uint32_t>(link_.seed), static_cast<uint32_t>(link_.seed >> 32U)};
  const uint32_t counter[4] = {static_cast<uint32_t>(number), static_cast<uint32_t>(number >> 32U), link_.from,
                               link_.to};
  uint32_t words[4];
  kernels::philox4x32(key, counter, words);
  // 28 random bits: the product stays below 64.
  return (uint64_t{words[0] >> 4U} * (jitter_max_ns + 1)) >> 28U;
}

}  // namespace troupe
