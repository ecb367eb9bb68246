// Bulk on its way out: queued for each peer, and handed to UCX a fragment at a time.
//
// What UCX holds cannot be overtaken, so little of it is bulk at any moment. The messages of a peer go one
// after the other; the payload goes straight from the sender's buffer.
#include <algorithm>

#include "runtime/wire/ucx_link.hpp"
#include "runtime/wire/ucx_sender.hpp"
#include "runtime/wire/ucx_status.hpp"

namespace troupe {

void ucx_sender::queue_bulk(send_request* request) {
  ucx_peer& peer = *request->peer;
  request->queued = true;
  request->next = nullptr;
  (peer.bulk_last == nullptr ? peer.bulk_first : peer.bulk_last->next) = request;
  peer.bulk_last = request;
  if (peer.bulk_listed) return;
  peer.bulk_listed = true;
  bulk_peers_.push_back(&peer);
}

// Takes the first one out.
void ucx_sender::unqueue_bulk(ucx_peer& peer) {
  send_request* const first = peer.bulk_first;
  peer.bulk_first = first->next;
  if (peer.bulk_first == nullptr) peer.bulk_last = nullptr;
  first->next = nullptr;
  first->queued = false;
}

bool ucx_sender::start_bulk() {
  if (urgent_before_ != urgent_started_) {
    urgent_before_ = urgent_started_;
    return true;
  }
  bool any = false;
  for (size_t i = 0; i < bulk_peers_.size();) {
    ucx_peer& peer = *bulk_peers_[i];
    any = start_bulk_of(peer) || any;
    if (peer.bulk_first != nullptr) {
      ++i;
      continue;
    }
    peer.bulk_listed = false;
    bulk_peers_[i] = bulk_peers_.back();
    bulk_peers_.pop_back();
  }
  return any;
}

bool ucx_sender::start_bulk_of(ucx_peer& peer) {
  const uint64_t in_ucx_max = options_.bulk_chunk_bytes * options_.bulk_chunks_in_flight;
  bool any = false;
  // What completes at once is not in UCX afterwards, but may well be in a socket: few in one round.
  for (uint32_t started = 0; started < options_.bulk_chunks_in_flight && peer.bulk_first != nullptr; ++started) {
    send_request* const request = peer.bulk_first;
    const uint64_t left = request->message.header.payload_bytes - request->offset;
    const uint64_t bytes = std::min(left, options_.bulk_chunk_bytes);
    if (peer.bulk_bytes_in_ucx != 0 && peer.bulk_bytes_in_ucx + bytes > in_ucx_max) break;
    if (has_submitted()) return true;  // perhaps a dispatch
    start_fragment(request, bytes);
    any = true;
  }
  return any;
}

void ucx_sender::start_fragment(send_request* request, uint64_t bytes) {
  ucx_peer& peer = *request->peer;
  auto& header = request->message.header;
  if (!request->begun) {
    request->begun = true;
    header.session = request->session = peer.session;
    header.sequence = peer.next_sequence[bulk_class]++;
    request->sender = this;
  }
  send_fragment* const fragment = take_fragment();
  fragment->of = request;
  fragment->bytes = bytes;
  fragment->message.header = header;
  fragment->message.header.detail = request->offset;
  seal(fragment->message, false);
  const std::byte* const data = bytes == 0 ? nullptr : request->message.payload->data + request->offset;
  request->offset += bytes;
  ++request->fragments;
  peer.bulk_bytes_in_ucx += bytes;
  counters_.bulk_fragments.add();
  if (request->offset == header.payload_bytes) unqueue_bulk(peer);

  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  parameters.flags = bytes >= options_.rendezvous_bytes ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
  parameters.cb.send = &ucx_sender::on_fragment_sent;
  parameters.user_data = fragment;
  const ucs_status_ptr_t returned =
      ucp_am_send_nbx(peer.sends_on->ucp_endpoint, message_id_data, &fragment->message.header,
                      sizeof(micro_batch_header), data, bytes, &parameters);
  const ucs_status_t status = ucx_status(returned);
  if (status == UCS_INPROGRESS) {
    ++unfinished_;
    fragment->link = peer.sends_on;
    ++fragment->link->sends;
  } else {
    finish_fragment(fragment, status);
  }
}

void ucx_sender::on_fragment_sent(void* ucx_request, ucs_status_t status, void* argument) {
  auto* const fragment = static_cast<send_fragment*>(argument);
  ucp_request_free(ucx_request);
  ucx_sender& self = *fragment->of->sender;
  --self.unfinished_;
  --fragment->link->sends;
  self.finish_fragment(fragment, status);
}

void ucx_sender::finish_fragment(send_fragment* fragment, ucs_status_t status) {
  send_request* const request = fragment->of;
  ucx_peer& peer = *request->peer;
  peer.bulk_bytes_in_ucx -= fragment->bytes;
  fragment->next = free_fragments_;
  free_fragments_ = fragment;
  --request->fragments;
  if (status != UCS_OK && request->outcome == UCS_OK) {
    request->outcome = status;
    // The rest of it is of no use. It is the first: only that one has fragments in UCX and is still queued.
    if (request->queued) unqueue_bulk(peer);
  }
  if (request->fragments == 0 && !request->queued) finish(request, request->outcome);
}

void ucx_sender::keep_waiting(ucx_peer& peer) {
  // The first may have begun, and what of it has arrived is lost with the session.
  if (peer.bulk_first != nullptr && peer.bulk_first->begun) drop_first_bulk(peer);
  while (peer.bulk_first != nullptr) {
    send_request* const request = peer.bulk_first;
    unqueue_bulk(peer);
    request->next = nullptr;
    wait(request);
  }
}

void ucx_sender::drop_bulk(ucx_peer& peer) {
  while (peer.bulk_first != nullptr) drop_first_bulk(peer);
}

void ucx_sender::drop_first_bulk(ucx_peer& peer) {
  send_request* const request = peer.bulk_first;
  unqueue_bulk(peer);
  if (request->fragments == 0) {
    drop(request, counters_.cut_off);
  } else if (request->outcome == UCS_OK) {
    request->outcome = UCS_ERR_CANCELED;
  }
}

send_fragment* ucx_sender::take_fragment() {
  if (free_fragments_ == nullptr) {
    constexpr size_t chunk_size = 64;
    auto& chunk = fragment_chunks_.emplace_back(std::make_unique<send_fragment[]>(chunk_size));
    for (size_t i = 0; i < chunk_size; ++i) {
      chunk[i].next = free_fragments_;
      free_fragments_ = &chunk[i];
    }
  }
  send_fragment* const taken = free_fragments_;
  free_fragments_ = taken->next;
  taken->next = nullptr;
  return taken;
}

}  // namespace troupe
