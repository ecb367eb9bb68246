// Bulk messages that come in fragments: checked, fetched into their place, delivered when all is there.
//
// A message takes its whole memory at once or none of it, so that no two can hold half of what both need.
#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/wire/ucx_receiver.hpp"

namespace troupe {

namespace {

// To a message that is given up. A rendezvous can be refused to its sender; eager data has left it.
ucs_status_t refused(uint64_t attributes) {
  return (attributes & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0 ? UCS_ERR_REJECTED : UCS_OK;
}

}  // namespace

ucs_status_t ucx_receiver::accept_fragment(const micro_batch_header& header, ucx_peer& peer, void* data, size_t size,
                                           uint64_t attributes) {
  bulk_assembly* whole = assemblies_.find(peer, header.sequence);
  const char* wrong = wrong_fragment(header, size, whole == nullptr ? peer.bulk_chunk_bytes : whole->chunk_bytes);
  if (wrong == nullptr && whole == nullptr) {
    bool in_order = false;
    if (!open_bulk(peer, header.sequence, in_order)) {  // the rest of a message that was given up
      counters_.stale.add();
      return refused(attributes);
    }
    if (!in_order) counters_.sequence_gaps.add();
    whole = &assemblies_.open(header, peer);
    counters_.assemblies.add();
    // Behind others that wait, so that memory goes to the oldest.
    if (held_[bulk_class].size == 0) whole->message.payload = pool_of(header).acquire(header.payload_bytes);
  }
  if (wrong != nullptr || !bulk_assemblies::announce(*whole, header)) {
    counters_.malformed.add();
    if (whole != nullptr) give_up(*whole);
    return refused(attributes);
  }
  if (!whole->message.payload) return hold_fragment(*whole, header, data, size, attributes);
  ++whole->transfers;
  if ((attributes & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    make_ready(make_arrival(*whole, header, data, size, true));
    return UCS_INPROGRESS;
  }
  std::memcpy(whole->message.payload->data + header.detail, data, size);
  finish_fragment(*whole, size, UCS_OK);
  return UCS_OK;
}

void ucx_receiver::make_ready(arrival* fragment) {
  ucx_peer& peer = *fragment->peer;
  (peer.ready_last == nullptr ? peer.ready_first : peer.ready_last->next_fragment) = fragment;
  peer.ready_last = fragment;
  if (peer.ready_listed) return;
  peer.ready_listed = true;
  ready_peers_.push_back(&peer);
}

ucx_receiver::arrival* ucx_receiver::take_ready(ucx_peer& peer) {
  auto* const taken = static_cast<arrival*>(peer.ready_first);
  peer.ready_first = taken->next_fragment;
  if (peer.ready_first == nullptr) peer.ready_last = nullptr;
  taken->next_fragment = nullptr;
  return taken;
}

// Of a message that is given up.
void ucx_receiver::discard(arrival* fragment) {
  bulk_assembly& whole = *fragment->part_of;
  const uint64_t bytes = fragment->bytes;
  ucp_am_data_release(worker_, fragment->data);
  give_back(fragment);
  finish_fragment(whole, bytes, UCS_ERR_CANCELED);
}

// Over shared memory UCX copies the fragment before it returns, over a network it fetches it by and by. So
// there is one in each round, peers taking turns, and of each peer all but one of those it may announce.
bool ucx_receiver::fetch_next() {
  const uint32_t fetching_max = std::max(1U, options_.bulk_chunks_in_flight - 1);
  for (size_t visited = 0; visited < ready_peers_.size();) {
    if (next_ready_ >= ready_peers_.size()) next_ready_ = 0;
    ucx_peer& peer = *ready_peers_[next_ready_];
    while (peer.ready_first != nullptr && static_cast<arrival*>(peer.ready_first)->part_of->given_up)
      discard(take_ready(peer));
    if (peer.ready_first == nullptr) {
      peer.ready_listed = false;
      ready_peers_[next_ready_] = ready_peers_.back();
      ready_peers_.pop_back();
      continue;
    }
    ++visited;
    ++next_ready_;
    if (peer.fetching >= fetching_max) continue;
    ++peer.fetching;
    fetch(take_ready(peer));
    return true;
  }
  return false;
}

ucx_receiver::arrival* ucx_receiver::make_arrival(bulk_assembly& whole, const micro_batch_header& header, void* data,
                                                  size_t size, bool rendezvous) {
  arrival* const made = take_arrival();
  made->message.header = header;
  made->peer = whole.peer;
  made->session = header.session;
  made->data = data;
  made->rendezvous = rendezvous;
  made->part_of = &whole;
  made->bytes = size;
  return made;
}

ucs_status_t ucx_receiver::hold_fragment(bulk_assembly& whole, const micro_batch_header& header, void* data,
                                         size_t size, uint64_t attributes) {
  auto& queue = held_[bulk_class];
  const bool rendezvous = (attributes & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  const bool keepable = rendezvous || (attributes & UCP_AM_RECV_ATTR_FLAG_DATA) != 0;
  if (!keepable || queue.size >= options_.classes[bulk_class].held_max) {
    counters_.overflowed.add();
    give_up(whole);
    return refused(attributes);
  }
  arrival* const held = make_arrival(whole, header, data, size, rendezvous);
  if (whole.waiting_first == nullptr) {
    whole.waiting_first = held;
    enqueue(queue, held);
  } else {
    whole.waiting_last->next_fragment = held;
    count_held(queue, 1);
  }
  whole.waiting_last = held;
  return UCS_INPROGRESS;
}

// The message has got memory: its fragments that waited for it are taken.
void ucx_receiver::start_waiting(bulk_assembly& whole) {
  auto& queue = held_[bulk_class];
  auto* one = static_cast<arrival*>(whole.waiting_first);
  whole.waiting_first = whole.waiting_last = nullptr;
  dequeue(queue, one);
  // All counted first, so that the message stays until the last of them is done with.
  for (const waiting_fragment* counted = one; counted != nullptr; counted = counted->next_fragment) {
    ++whole.transfers;
    if (counted != one) count_held(queue, -1);
  }
  while (one != nullptr) {
    auto* const next = static_cast<arrival*>(one->next_fragment);
    one->next_fragment = nullptr;
    if (one->rendezvous) {
      make_ready(one);
    } else {
      const uint64_t bytes = one->bytes;
      if (!whole.given_up) std::memcpy(whole.message.payload->data + one->message.header.detail, one->data, bytes);
      ucp_am_data_release(worker_, one->data);
      give_back(one);
      finish_fragment(whole, bytes, UCS_OK);
    }
    one = next;
  }
}

void ucx_receiver::finish_fragment(bulk_assembly& whole, uint64_t bytes, ucs_status_t status) {
  --whole.transfers;
  if (whole.given_up) {
    if (whole.transfers == 0) close(whole);
    return;
  }
  if (status != UCS_OK) {
    counters_.cut_off.add();
    give_up(whole);
    return;
  }
  whole.bytes_missing -= bytes;
  if (whole.bytes_missing != 0) return;
  auto message = std::move(whole.message);
  const ucx_peer& peer = *whole.peer;
  close(whole);
  seal(message, false);  // as if it had come undivided
  const uint64_t session = message.header.session;
  deliver(std::move(message), peer, session);
}

// Lets go of all that waits for the message; its memory goes when no transfer writes to it any more.
void ucx_receiver::give_up(bulk_assembly& whole) {
  auto& queue = held_[bulk_class];
  auto* one = static_cast<arrival*>(whole.waiting_first);
  whole.waiting_first = whole.waiting_last = nullptr;
  if (one != nullptr) dequeue(queue, one);
  for (const arrival* const first = one; one != nullptr;) {
    auto* const next = static_cast<arrival*>(one->next_fragment);
    if (one != first) count_held(queue, -1);
    ucp_am_data_release(worker_, one->data);
    give_back(one);
    one = next;
  }
  whole.given_up = true;
  if (whole.transfers == 0) close(whole);
}

void ucx_receiver::close(bulk_assembly& whole) {
  assemblies_.close(whole);
  counters_.assemblies.subtract();
}

}  // namespace troupe
