// The greetings: who the other side is, and which session of a peer is current.
#include <algorithm>
#include <string>
#include <utility>

#include "runtime/wire/ucx_link.hpp"
#include "runtime/wire/wire_time.hpp"

namespace troupe {

// Lives until UCX has completed it.
struct ucx_links::outgoing_greeting {
  greeting message;
  ucx_links* owner = nullptr;
  ucx_peer* peer = nullptr;
};

void ucx_links::greet(ucx_link& link, greeting_phase phase, const greeting* answered, refusal reason) {
  auto out = std::make_unique<outgoing_greeting>();
  out->owner = this;
  out->peer = link.peer;
  greeting& message = out->message;
  message.phase = phase;
  message.reason = reason;
  message.node = options_.node;
  message.unit = options_.unit;
  message.incarnation = options_.incarnation;
  message.cluster_key = options_.cluster_key;
  message.bulk_chunk_bytes = options_.bulk_chunk_bytes;
  if (link.automatic && phase == greeting_phase::hello) message.flags |= greeting::flag_automatic;
  if (link.peer != nullptr) {
    message.destination_node = link.peer->node;
    message.destination_incarnation = link.peer->incarnation;
    message.session = link.peer->session;
    message.destination_session = link.peer->peer_session;
    link.peer->ping_in_flight = link.peer->ping_in_flight || phase == greeting_phase::ping;
  } else if (answered != nullptr) {
    message.destination_node = answered->node;
    message.destination_incarnation = answered->incarnation;
    message.destination_session = answered->session;
  }
  seal(message);

  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  // With its endpoint, by which the other side finds the connection.
  parameters.flags = UCP_AM_SEND_FLAG_EAGER | UCP_AM_SEND_FLAG_REPLY;
  parameters.cb.send = &ucx_links::on_greeting_sent;
  parameters.user_data = out.get();
  ++greetings_unfinished_;
  outgoing_greeting* const sent = out.release();  // until `on_greeting_sent`
  const ucs_status_t status = ucx_status(ucp_am_send_nbx(link.ucp_endpoint, message_id_greeting, &sent->message,
                                                         sizeof sent->message, nullptr, 0, &parameters));
  // A failure needs no handling here: UCX reports the endpoint's own.
  if (status != UCS_INPROGRESS) on_greeting_sent(nullptr, status, sent);
}

void ucx_links::on_greeting_sent(void* ucx_request, ucs_status_t, void* argument) {
  const std::unique_ptr<outgoing_greeting> sent(static_cast<outgoing_greeting*>(argument));
  if (ucx_request != nullptr) ucp_request_free(ucx_request);
  --sent->owner->greetings_unfinished_;
  if (sent->peer != nullptr && sent->message.phase == greeting_phase::ping) sent->peer->ping_in_flight = false;
}

ucs_status_t ucx_links::on_greeting(void* argument, const void* header, size_t header_size, void*, size_t size,
                                    const ucp_am_recv_param_t* parameters) {
  auto& self = *static_cast<ucx_links*>(argument);
  const bool has_endpoint = (parameters->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0;
  ucx_link* const link = has_endpoint ? self.find(parameters->reply_ep) : nullptr;
  if (link != nullptr) {
    link->heard = true;
    self.attention_ = self.attention_ || link->unwanted;
  }
  const auto foreign = read_foreign(header, header_size);
  if (foreign && link != nullptr) {
    if (!link->unwanted && !self.shutting_down_) self.answer_foreign(*link, *foreign);
    return UCS_OK;
  }
  const auto said = read_greeting(header, header_size);
  if (!said || size != 0 || link == nullptr) {
    self.counters_.malformed.add();
    if (link != nullptr && !link->greeted) self.lose(*link, "it does not speak this protocol");
    return UCS_OK;
  }
  if (!link->unwanted && !self.shutting_down_) self.answer(*link, *said);
  return UCS_OK;
}

void ucx_links::answer(ucx_link& link, const greeting& said) {
  if (link.peer != nullptr) link.peer->heard_ns = wire_time_ns();
  switch (said.phase) {
    case greeting_phase::hello: answer_hello(link, said); break;
    case greeting_phase::welcome: answer_welcome(link, said); break;
    case greeting_phase::ready: answer_ready(link, said); break;
    case greeting_phase::refuse: answer_refusal(link, said); break;
    case greeting_phase::retire: answer_retire(link); break;
    case greeting_phase::bye:
      if (link.peer != nullptr && said.session == link.peer->peer_session)
        drop(*link.peer, "it left", false, ending::for_good);
      break;
    case greeting_phase::ping: break;
  }
}

refusal ucx_links::judge(const greeting& said) const {
  if (said.cluster_key != options_.cluster_key) return refusal::wrong_cluster;
  if (said.destination_node != options_.node || said.node == options_.node) return refusal::wrong_node;
  if (said.destination_incarnation != options_.incarnation) return refusal::wrong_incarnation;
  const ucx_peer* const known = peers_.find(said.node);
  if (known != nullptr && said.incarnation < known->incarnation_min) return refusal::stale_sender;
  const bool automatic = (said.flags & greeting::flag_automatic) != 0;
  if (known != nullptr && known->parted && known->incarnation == said.incarnation && automatic) return refusal::parted;
  return refusal::none;
}

void ucx_links::answer_hello(ucx_link& link, const greeting& said) {
  if (link.peer != nullptr) return;  // only the connector says hello, once
  if (const refusal reason = judge(said); reason != refusal::none) {
    counters_.refused_greetings.add();
    greet(link, greeting_phase::refuse, &said, reason);
    // Long enough for the refusal to arrive; the connector closes at once.
    link.deadline_ns = std::min(link.deadline_ns, wire_time_ns() + 1'000'000'000);
    return;
  }
  ucx_peer& peer = peers_.find_or_add(said.node);
  if (peer.state != peer_state::absent) {
    if (peer.incarnation != said.incarnation) {
      drop(peer, "a later incarnation of it takes its place", true, ending::for_good);
    } else if (peer.peer_session != 0 && peer.peer_session != said.session) {
      drop(peer, "it has connected anew", false, ending::broken);
    }
  }
  if (peer.state == peer_state::absent || peer.state == peer_state::retrying) begin_session(peer, said.incarnation);
  peer.peer_session = said.session;
  peer.unit = said.unit;
  peer.bulk_chunk_bytes = said.bulk_chunk_bytes;
  link.peer = &peer;
  greet(link, greeting_phase::welcome, &said);
}

void ucx_links::answer_welcome(ucx_link& link, const greeting& said) {
  ucx_peer* const peer = link.peer;
  if (peer == nullptr || link.greeted) return;
  if (said.node != peer->node || said.incarnation != peer->incarnation || said.destination_session != peer->session ||
      (peer->peer_session != 0 && peer->peer_session != said.session)) {
    lose(link, "its answer does not fit what was asked");
    return;
  }
  peer->peer_session = said.session;
  peer->unit = said.unit;
  peer->bulk_chunk_bytes = said.bulk_chunk_bytes;
  greet(link, greeting_phase::ready, &said);
  bring_up(*peer, link);
}

void ucx_links::answer_ready(ucx_link& link, const greeting& said) {
  ucx_peer* const peer = link.peer;
  if (peer == nullptr || link.greeted || said.session != peer->peer_session ||
      said.destination_session != peer->session)
    return;
  bring_up(*peer, link);
}

void ucx_links::begin_session(ucx_peer& peer, uint32_t incarnation) {
  set_state(peer, peer_state::connecting);
  if (peer.incarnation != incarnation) peer.wanted = false;  // an earlier one was
  peer.parted = false;
  peer.incarnation = incarnation;
  peer.incarnation_min = std::max(peer.incarnation_min, uint64_t{incarnation});
  peer.session = next_session_++;
  peer.peer_session = 0;
  peer.sends_on = nullptr;
  peer.next_sequence = {};
  peer.expected_sequence = {};
  peer.bulk_opened = 0;
  peer.admission.store(ucx_peer::admission_of(incarnation));
}

void ucx_links::bring_up(ucx_peer& peer, ucx_link& link) {
  link.greeted = true;
  if (peer.state == peer_state::up) {  // on its other connection
    settle(peer);
    return;
  }
  set_state(peer, peer_state::up);
  peer.outcome_owed = peer.deliberate = false;
  peer.retry_delay_ms = 0;
  peer.sends_on = &link;
  peer.heard_ns = wire_time_ns();
  close_descriptors_on_exec();
  report(peer, true, {});
  sender_.start_waiting(peer);
}

void ucx_links::drop(ucx_peer& peer, std::string_view reason, bool cut_here, ending how) {
  const bool was_up = peer.state == peer_state::up;
  if (how == ending::for_good || shutting_down_) peer.wanted = false;
  if (!peer.wanted) {
    // Unless `connect` has meanwhile admitted a later incarnation.
    uint64_t admission = ucx_peer::admission_of(peer.incarnation);
    peer.admission.compare_exchange_strong(admission, 0);
  }
  if (cut_here) peer.session_cut = peer.session;
  peer.peer_session = 0;
  peer.sends_on = nullptr;
  if (peer.wanted && was_up) {
    sender_.keep_waiting(peer);
  } else {
    sender_.drop_waiting(peer);
  }
  receiver_.drop_held(peer);
  for (const auto& link : links_) {
    if (link->peer != &peer) continue;
    link->peer = nullptr;
    link->unwanted = true;
    attention_ = true;
  }
  if (peer.wanted) {
    schedule(peer);
  } else {
    set_state(peer, peer_state::absent);
  }
  const bool news = was_up || peer.outcome_owed;
  peer.outcome_owed = false;
  if (news && !shutting_down_) report(peer, false, reason);
}

void ucx_links::set_state(ucx_peer& peer, peer_state state) {
  if (peer.state == peer_state::up) counters_.peers_up.subtract();
  if (peer.state == peer_state::retrying) --retrying_;
  peer.state = state;
  if (state == peer_state::up) counters_.peers_up.add();
  if (state == peer_state::retrying) ++retrying_;
}

void ucx_links::report(const ucx_peer& peer, bool up, std::string_view reason) {
  if (options_.on_peer) options_.on_peer({peer.node, peer.incarnation, peer.unit, up, std::string(reason)});
}

}  // namespace troupe
