#include "runtime/wire/ucx_sender.hpp"

#include <algorithm>

#include "runtime/wire/ucx_link.hpp"
#include "runtime/wire/ucx_status.hpp"
#include "runtime/wire/wire_time.hpp"

namespace troupe {

void ucx_sender::route_all(send_request* first) {
  while (first != nullptr) {
    send_request* const next = first->next;
    first->next = nullptr;
    route(first);
    first = next;
  }
}

void ucx_sender::route(send_request* request) {
  ucx_peer& peer = *request->peer;
  // The peer may have gone, or been replaced, between `send` and here.
  if (peer.state == peer_state::absent || request->message.header.destination_incarnation != peer.incarnation) {
    drop(request, counters_.stale);
  } else if (peer.state == peer_state::up) {
    if (message_class(request->message.header.kind) == bulk_class) {
      queue_bulk(request);
    } else {
      start(request);
    }
  } else {
    wait(request);
  }
}

void ucx_sender::wait(send_request* request) {
  ucx_peer& peer = *request->peer;
  (peer.waiting_last == nullptr ? peer.waiting_first : peer.waiting_last->next) = request;
  peer.waiting_last = request;
}

void ucx_sender::start_waiting(ucx_peer& peer) {
  send_request* const first = peer.waiting_first;
  peer.waiting_first = peer.waiting_last = nullptr;
  route_all(first);
}

void ucx_sender::drop_waiting(ucx_peer& peer) {
  drop_bulk(peer);
  send_request* request = peer.waiting_first;
  peer.waiting_first = peer.waiting_last = nullptr;
  while (request != nullptr) {
    send_request* const next = request->next;
    drop(request, counters_.cut_off);
    request = next;
  }
}

void ucx_sender::start(send_request* request) {
  ++urgent_started_;
  ucx_peer& peer = *request->peer;
  auto& header = request->message.header;
  header.session = request->session = peer.session;
  header.sequence = peer.next_sequence[message_class(header.kind)]++;
  seal(request->message, false);
  request->sender = this;

  const uint64_t bytes = header.payload_bytes;
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  // Not left to UCX: its own choice depends on the transport and on how far wiring up has come.
  parameters.flags = bytes >= options_.rendezvous_bytes ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
  parameters.cb.send = &ucx_sender::on_sent;
  parameters.user_data = request;
  const ucs_status_ptr_t returned =
      ucp_am_send_nbx(peer.sends_on->ucp_endpoint, message_id_data, &header, sizeof header,
                      bytes == 0 ? nullptr : request->message.payload->data, bytes, &parameters);
  if (const uint64_t spin_ns = spin_after_ns(options_, bytes); spin_ns != 0)
    answer_until_ns_ = std::max(answer_until_ns_, wire_time_ns() + spin_ns);
  const ucs_status_t status = ucx_status(returned);
  if (status == UCS_INPROGRESS) {
    ++unfinished_;
    request->link = peer.sends_on;
    ++request->link->sends;
  } else {
    finish(request, status);
  }
}

void ucx_sender::on_sent(void* ucx_request, ucs_status_t status, void* argument) {
  auto* const request = static_cast<send_request*>(argument);
  ucp_request_free(ucx_request);
  --request->sender->unfinished_;
  --request->link->sends;
  request->sender->finish(request, status);
}

void ucx_sender::finish(send_request* request, ucs_status_t status) {
  if (status == UCS_OK) {
    counters_.messages_sent.add();
    counters_.bytes_sent.add(request->message.header.payload_bytes);
    release_credit(request);
    requests_.give_back(request);
    return;
  }
  // When this side cut the session, the peer may live, not know it yet, and still fetch the payload.
  if (request->session == request->peer->session_cut && options_.quarantine_ms != 0 &&
      request->message.header.payload_bytes >= options_.rendezvous_bytes) {
    counters_.cut_off.add();
    release_credit(request);
    quarantine(request);
    return;
  }
  drop(request, status == UCS_ERR_REJECTED ? counters_.overflowed : counters_.cut_off);
}

void ucx_sender::drop(send_request* request, progress_counter& reason) {
  reason.add();
  release_credit(request);
  requests_.give_back(request);
}

void ucx_sender::release_credit(send_request* request) {
  request->peer->credits[message_class(request->message.header.kind)].release(request->charged);
}

void ucx_sender::quarantine(send_request* request) {
  counters_.quarantined.add();
  request->quarantined_until_ns = wire_time_ns() + uint64_t{options_.quarantine_ms} * 1'000'000;
  request->next = nullptr;
  (quarantine_last_ == nullptr ? quarantine_first_ : quarantine_last_->next) = request;
  quarantine_last_ = request;
}

void ucx_sender::end_quarantine(uint64_t now_ns, bool everything) {
  while (quarantine_first_ != nullptr && (everything || quarantine_first_->quarantined_until_ns <= now_ns)) {
    send_request* const request = quarantine_first_;
    quarantine_first_ = request->next;
    if (quarantine_first_ == nullptr) quarantine_last_ = nullptr;
    counters_.quarantined.subtract();
    requests_.give_back(request);
  }
}

}  // namespace troupe
