// The connections: made, accepted, lost and closed. The greetings are in `ucx_handshake.cpp`.
#include "runtime/wire/ucx_link.hpp"

#include <algorithm>
#include <utility>

#include "runtime/wire/wire_time.hpp"

namespace troupe {

namespace {

constexpr uint64_t ms = 1'000'000;  // nanoseconds

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
  if (peer.state != peer_state::absent) {
    if (peer.incarnation == incarnation) {
      peer.admission.store(ucx_peer::admission_of(incarnation));
      return;
    }
    drop(peer, "a later incarnation of it takes its place", true);
  }
  begin_session(peer, incarnation);
  ucp_ep_params_t parameters{};
  parameters.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  parameters.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  parameters.sockaddr.addr = address.get();
  parameters.sockaddr.addrlen = address.length;
  auto made = make_link(parameters, &peer);
  if (!made) {
    drop(peer, made.failure().message, false);
    return;
  }
  greet(**made, greeting_phase::hello, nullptr);
}

void ucx_links::disconnect(uint16_t node, std::string_view reason) {
  ucx_peer* const peer = peers_.find(node);
  if (peer == nullptr) return;
  if (peer->state == peer_state::absent) {
    peer->admission.store(0);
    return;
  }
  if (peer->sends_on != nullptr) greet(*peer->sends_on, greeting_phase::bye, nullptr);
  drop(*peer, reason, true);
}

void ucx_links::refuse(uint16_t node, uint32_t incarnation) {
  ucx_peer& peer = peers_.find_or_add(node);
  peer.incarnation_min = std::max(peer.incarnation_min, uint64_t{incarnation} + 1);
  if (peer.state != peer_state::absent && peer.incarnation <= incarnation)
    disconnect(node, "this incarnation of it was given up");
}

result<ucx_link*> ucx_links::make_link(ucp_ep_params_t parameters, ucx_peer* peer) {
  if (links_.size() >= options_.connections_max)
    return error{errc::exhausted, "the wire has as many connections as connections_max allows"};
  auto link = std::make_unique<ucx_link>();
  link->owner = this;
  link->peer = peer;
  link->deadline_ns = wire_time_ns() + options_.handshake_timeout_ms * ms;
  parameters.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  parameters.err_handler.cb = &ucx_links::on_failure;
  parameters.err_handler.arg = link.get();
  auto made = ucx_check(ucp_ep_create(worker_.handle(), &parameters, &link->ucp_endpoint), "connect to a peer");
  if (!made) return made.failure();
  links_.push_back(std::move(link));
  return links_.back().get();
}

void ucx_links::on_request(ucp_conn_request_h request, void* argument) {
  static_cast<ucx_links*>(argument)->requests_.push_back(request);
}

void ucx_links::accept_waiting() {
  for (const ucp_conn_request_h request : requests_) {
    if (shutting_down_ || links_.size() >= options_.connections_max) {
      (void)ucx_check(ucp_listener_reject(worker_.listener(), request), "reject a connection");
      continue;
    }
    ucp_ep_params_t parameters{};
    parameters.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
    parameters.conn_request = request;
    // On failure UCX has disposed of the request, and the connector sees its connection fail.
    (void)make_link(parameters, nullptr);
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
    if (one->peer == peer && !one->failed && (other == nullptr || one->greeted)) other = one.get();
  const bool was_used = peer->sends_on == &link;
  if (other == nullptr || (was_used && !other->greeted)) {
    drop(*peer, reason, !link.failed);
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
  if (attention_) any = handle_failures() || any;
  if (!closing_.empty()) any = finish_closing() || any;
  check_deadlines(now_ns);
  if (options_.silence_max_ms != 0) check_silences(now_ns);
  return any;
}

bool ucx_links::handle_failures() {
  attention_ = false;
  for (size_t i = 0; i < links_.size(); ++i) {
    ucx_link& link = *links_[i];
    if (link.failed && !link.unwanted) lose(link, ucs_status_string(link.failure));
  }
  bool any = false;
  for (size_t i = 0; i < links_.size();) {
    if (!links_[i]->unwanted) {
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
  if (ucx_status(returned) != UCS_INPROGRESS) return;
  link->closing = returned;
  closing_.push_back(std::move(link));
}

bool ucx_links::finish_closing() {
  const auto finished = [](const std::unique_ptr<ucx_link>& link) {
    if (ucp_request_check_status(link->closing) == UCS_INPROGRESS) return false;
    ucp_request_free(link->closing);
    return true;
  };
  return std::erase_if(closing_, finished) != 0;
}

void ucx_links::check_deadlines(uint64_t now_ns) {
  if (now_ns - deadlines_checked_ns_ < 20 * ms) return;
  deadlines_checked_ns_ = now_ns;
  for (size_t i = 0; i < links_.size(); ++i) {
    ucx_link& link = *links_[i];
    if (!link.greeted && !link.unwanted && now_ns > link.deadline_ns) lose(link, "it did not complete the handshake");
  }
}

void ucx_links::check_silences(uint64_t now_ns) {
  const uint64_t silence_max_ns = options_.silence_max_ms * ms;
  if (now_ns - silences_checked_ns_ < silence_max_ns / 4) return;
  silences_checked_ns_ = now_ns;
  peers_.for_each([&](ucx_peer& peer) {
    if (peer.state != peer_state::up) return;
    if (now_ns > peer.heard_ns && now_ns - peer.heard_ns > silence_max_ns) {
      drop(peer, "it was silent for too long", true);
    } else if (!peer.ping_in_flight) {
      greet(*peer.sends_on, greeting_phase::ping, nullptr);
    }
  });
}

int ucx_links::sleep_max_ms() const {
  if (attention_ || !closing_.empty() || !requests_.empty()) return 1;
  int longest = 1000;
  if (options_.silence_max_ms != 0) longest = std::min(longest, static_cast<int>(options_.silence_max_ms / 4));
  for (const auto& link : links_)
    if (!link->greeted) return std::min(longest, 50);
  return longest;
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
    if (peer.state != peer_state::absent) drop(peer, "this node closes", true);
  });
  for (const auto& link : links_) link->unwanted = true;
  handle_failures();
}

}  // namespace troupe
