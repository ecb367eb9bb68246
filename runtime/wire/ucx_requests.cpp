#include "runtime/wire/ucx_requests.hpp"

#include <mutex>

namespace troupe {

send_request* request_stack::take_all() {
  if (top_.load(std::memory_order_relaxed) == nullptr) return nullptr;
  send_request* newest_first = take_all_unordered();
  send_request* oldest_first = nullptr;
  while (newest_first != nullptr) {
    send_request* const next = newest_first->next;
    newest_first->next = oldest_first;
    oldest_first = newest_first;
    newest_first = next;
  }
  return oldest_first;
}

send_request* request_pool::take() {
  const std::lock_guard lock(lock_);
  if (free_ == nullptr) free_ = returned_.take_all_unordered();
  if (free_ == nullptr) grow();
  send_request* const taken = free_;
  free_ = taken->next;
  taken->next = nullptr;
  return taken;
}

void request_pool::give_back(send_request* request) {
  request->message.payload = {};
  request->peer = nullptr;
  request->begun = request->queued = false;
  request->offset = 0;
  request->outcome = UCS_OK;
  returned_.push(request);
}

void request_pool::grow() {
  constexpr size_t chunk_size = 256;
  auto& chunk = chunks_.emplace_back(std::make_unique<send_request[]>(chunk_size));
  for (size_t i = 0; i < chunk_size; ++i) {
    chunk[i].next = free_;
    free_ = &chunk[i];
  }
}

}  // namespace troupe
