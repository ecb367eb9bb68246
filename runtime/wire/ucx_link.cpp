// The connections: made, accepted, lost and closed. The greetings are in `ucx_handshake.cpp`, connecting
// anew in `ucx_reconnect.cpp`.
#include "runtime/wire/ucx_link.hpp"

#include <algorithm>
#include <utility>

#include "runtime/wire/wire_time.hpp"

namespace troupe {

namespace {

constexpr uint64_t ms = 1'000'000;  // nanoseconds

// UCX 1.13 may abort the process when a connection is closed while its first bytes are on their way: its
// event thread hands an event of that socket to whichever connection has got the same descriptor since
// (`tcp_sockcm_ep.c`, progress_send). One that is not known to be past that is closed so much later.
constexpr uint64_t close_delay_ns = 200 * ms;

}  // namespace

ucx_links::ucx_links(const ucx_wire_options& options, ucx_counters& counters, peer_table& peers, ucx_worker& worker,
                     ucx_sender& sender, ucx_receiver& receiver)
    : options_(options),
      counters_(counters),
      peers_(peers),
      worker_(worker),
      sender_(sender),
      receiver_(receiver),
      next_session_(wire_time_ns() | 1U) {}

ucx_links::~ucx_links() = default;

result<void> ucx_links::open(const socket_address& listen) {
  paused_ = false;
  if (auto done = worker_.on_message(message_id_greeting, &ucx_links::on_greeting, this); !done) return done;
  return worker_.listen(listen, &ucx_links::on_request, this);
}

void ucx_links::connect(uint16_t node, uint32_t incarnation, const socket_address& address) {
  ucx_peer& peer = peers_.find_or_add(node);
  if (incarnation < peer.incarnation_min) {
    uint64_t admission = ucx_peer::admission_of(incarnation);
    peer.admission.compare_exchange_strong(admission, 0);
    if (options_.on_peer)
      options_.on_peer({node, incarnation, 0, false, "a later incarnation of it is known, or it was given up"});
    return;
  }
  if (peer.state != peer_state::absent && peer.incarnation != incarnation)
    drop(peer, "a later incarnation of it takes its place", true, ending::for_good);
  peer.wanted = true;
  peer.parted = false;
  peer.address = address;
  if (peer.state != peer_state::absent) peer.admission.store(ucx_peer::admission_of(incarnation));
  if (peer.state == peer_state::up) return;
  peer.outcome_owed = peer.deliberate = true;
  if (peer.state == peer_state::connecting) return;
  peer.retry_delay_ms = 0;
  peer.incarnation = incarnation;
  attempt(peer);
}

void ucx_links::disconnect(uint16_t node, std::string_view reason) {
  ucx_peer* const peer = peers_.find(node);
  if (peer == nullptr) return;
  peer->wanted = false;
  peer->parted = true;
  if (peer->state == peer_state::absent) {
    peer->admission.store(0);
    return;
  }
  if (peer->sends_on != nullptr) greet(*peer->sends_on, greeting_phase::bye, nullptr);
  drop(*peer, reason, true, ending::for_good);
}

void ucx_links::cut(uint16_t node) {
  ucx_peer* const peer = peers_.find(node);
  if (peer == nullptr || peer->state == peer_state::absent || peer->state == peer_state::retrying) return;
  drop(*peer, "its connection was cut", true, ending::broken);
}

void ucx_links::refuse(uint16_t node, uint32_t incarnation) {
  ucx_peer& peer = peers_.find_or_add(node);
  peer.incarnation_min = std::max(peer.incarnation_min, uint64_t{incarnation} + 1);
  if (peer.incarnation <= incarnation) peer.wanted = false;
  if (peer.state != peer_state::absent && peer.incarnation <= incarnation)
    disconnect(node, "this incarnation of it was given up");
}

result<ucx_link*> ucx_links::make_link(ucp_ep_params_t parameters, ucx_peer* peer) {
  if (links_.size() >= options_.connections_max)
    return error{errc::exhausted, "the wire has as many connections as connections_max allows"};
  auto link = std::make_unique<ucx_link>();
  link->owner = this;
  link->peer = peer;
  link->made_here = peer != nullptr;
  link->made_ns = wire_time_ns();
  link->deadline_ns = link->made_ns + options_.handshake_timeout_ms * ms;
  parameters.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  parameters.err_handler.cb = &ucx_links::on_failure;
  parameters.err_handler.arg = link.get();
  auto made = ucx_check(ucp_ep_create(worker_.handle(), &parameters, &link->ucp_endpoint), "connect to a peer");
  if (!made) return made.failure();
  links_.push_back(std::move(link));
  counters_.links.add();
  return links_.back().get();
}

void ucx_links::on_request(ucp_conn_request_h request, void* argument) {
  static_cast<ucx_links*>(argument)->requests_.push_back(request);
}

void ucx_links::accept_waiting() {
  for (const ucp_conn_request_h request : requests_) {
    if (shutting_down_ || paused_ || links_.size() >= options_.connections_max) {
      (void)ucx_check(ucp_listener_reject(worker_.listener(), request), "reject a connection");
      continue;
    }
    ucp_conn_request_attr_t attributes{};
    attributes.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR;
    const auto known = ucx_check(ucp_conn_request_query(request, &attributes), "tell who connects");
    ucp_ep_params_t parameters{};
    parameters.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
    parameters.conn_request = request;
    // On failure UCX has disposed of the request, and the connector sees its connection fail.
    const auto made = make_link(parameters, nullptr);
    if (made && known) (*made)->address = attributes.client_address;
  }
  requests_.clear();
}

void ucx_links::on_failure(void* argument, ucp_ep_h, ucs_status_t status) {
  auto& link = *static_cast<ucx_link*>(argument);
  link.failed = true;
  link.failure = status;
  link.owner->attention_ = true;
}

// A connection is of no more use. Its peer goes too, unless another connection to it remains.
void ucx_links::lose(ucx_link& link, std::string_view reason) {
  link.unwanted = true;
  attention_ = true;
  ucx_peer* const peer = std::exchange(link.peer, nullptr);
  if (peer == nullptr) return;
  ucx_link* other = nullptr;
  for (const auto& one : links_)
    if (one->peer == peer && !one->failed && !one->retiring && (other == nullptr || one->greeted)) other = one.get();
  const bool was_used = peer->sends_on == &link;
  if (other == nullptr || (was_used && !other->greeted)) {
    drop(*peer, reason, !link.failed, ending::broken);
  } else if (was_used) {
    peer->sends_on = other;
  }
}

ucx_link* ucx_links::find(ucp_ep_h endpoint) const {
  for (const auto& link : links_)
    if (link->ucp_endpoint == endpoint) return link.get();
  return nullptr;
}

bool ucx_links::run(uint64_t now_ns) {
  bool any = !requests_.empty();
  if (any) accept_waiting();
  if (attention_ || (close_again_ns_ != 0 && now_ns >= close_again_ns_)) any = handle_failures() || any;
  if (!closing_.empty()) any = finish_closing() || any;
  if (retiring_ != 0) any = say_retired() || any;
  if (retrying_ != 0 && !paused_) any = check_retries(now_ns) || any;
  check_deadlines(now_ns);
  if (options_.silence_max_ms != 0) check_silences(now_ns);
  return any;
}

bool ucx_links::handle_failures() {
  attention_ = false;
  for (size_t i = 0; i < links_.size(); ++i) {
    ucx_link& link = *links_[i];
    if (!link.failed || link.unwanted) continue;
    lost_ = lost_ || link.heard;  // not each attempt to reach one that is gone
    lose(link, ucs_status_string(link.failure));
  }
  bool any = false;
  close_again_ns_ = 0;
  for (size_t i = 0; i < links_.size();) {
    const ucx_link& link = *links_[i];
    const bool early = !link.heard && !link.failed && wire_time_ns() < link.made_ns + close_delay_ns;
    if (!link.unwanted || early) {
      if (link.unwanted && (close_again_ns_ == 0 || link.made_ns + close_delay_ns < close_again_ns_))
        close_again_ns_ = link.made_ns + close_delay_ns;
      ++i;
      continue;
    }
    any = true;
    std::swap(links_[i], links_.back());
    auto unwanted = std::move(links_.back());
    links_.pop_back();
    close(std::move(unwanted));
  }
  attention_ = false;
  return any;
}

void ucx_links::close(std::unique_ptr<ucx_link> link) {
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  // An orderly close would never end on a hung peer.
  parameters.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t returned = ucp_ep_close_nbx(link->ucp_endpoint, &parameters);
  counters_.links.subtract();
  if (link->retiring && !link->retire_said) --retiring_;
  if (ucx_status(returned) == UCS_INPROGRESS) link->closing = returned;
  if (link->closing != nullptr || link->sends != 0) closing_.push_back(std::move(link));
}

bool ucx_links::finish_closing() {
  const auto finished = [](const std::unique_ptr<ucx_link>& link) {
    if (link->closing != nullptr) {
      if (ucp_request_check_status(link->closing) == UCS_INPROGRESS) return false;
      ucp_request_free(link->closing);
      link->closing = nullptr;
    }
    return link->sends == 0;
  };
  return std::erase_if(closing_, finished) != 0;
}

void ucx_links::check_deadlines(uint64_t now_ns) {
  if (now_ns - deadlines_checked_ns_ < 20 * ms) return;
  deadlines_checked_ns_ = now_ns;
  for (size_t i = 0; i < links_.size(); ++i) {
    ucx_link& link = *links_[i];
    if (link.greeted || link.unwanted || now_ns <= link.deadline_ns) continue;
    lost_ = true;
    lose(link, "it did not complete the handshake");
  }
}

void ucx_links::check_silences(uint64_t now_ns) {
  const uint64_t silence_max_ns = options_.silence_max_ms * ms;
  if (now_ns - silences_checked_ns_ < silence_max_ns / 4) return;
  silences_checked_ns_ = now_ns;
  peers_.for_each([&](ucx_peer& peer) {
    if (peer.state != peer_state::up) return;
    if (now_ns > peer.heard_ns && now_ns - peer.heard_ns > silence_max_ns) {
      lost_ = true;
      drop(peer, "it was silent for too long", true, ending::broken);
    } else if (!peer.ping_in_flight) {
      greet(*peer.sends_on, greeting_phase::ping, nullptr);
    }
  });
}

int ucx_links::sleep_max_ms(uint64_t now_ns) const {
  if (attention_ || close_again_ns_ != 0 || !closing_.empty() || !requests_.empty()) return 1;
  int longest = 1000;
  if (retrying_ != 0) {
    const uint64_t left_ns = next_retry_ns_ > now_ns ? next_retry_ns_ - now_ns : 0;
    longest = static_cast<int>(std::min<uint64_t>(1000, left_ns / ms + 1));
  }
  if (options_.silence_max_ms != 0) longest = std::min(longest, static_cast<int>(options_.silence_max_ms / 4));
  for (const auto& link : links_)
    if (!link->greeted) return std::min(longest, 50);
  return longest;
}

void ucx_links::let_go(std::string_view reason) {
  paused_ = true;
  accept_waiting();
  worker_.stop_listening();
  peers_.for_each([&](ucx_peer& peer) {
    if (peer.state != peer_state::absent && peer.state != peer_state::retrying)
      drop(peer, reason, true, ending::broken);
  });
  for (const auto& link : links_) link->unwanted = true;
  attention_ = true;
}

void ucx_links::say_bye() {
  shutting_down_ = true;
  accept_waiting();
  peers_.for_each([&](ucx_peer& peer) {
    if (peer.state == peer_state::up) greet(*peer.sends_on, greeting_phase::bye, nullptr);
  });
}

void ucx_links::close_all() {
  shutting_down_ = true;
  accept_waiting();
  worker_.stop_listening();
  peers_.for_each([&](ucx_peer& peer) {
    if (peer.state != peer_state::absent) drop(peer, "this node closes", true, ending::for_good);
  });
  for (const auto& link : links_) link->unwanted = true;
  handle_failures();
}

}  // namespace troupe
