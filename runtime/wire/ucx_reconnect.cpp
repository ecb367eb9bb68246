// Connecting anew, what refusals end, and giving up the second of two connections.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>

#include "runtime/wire/ucx_link.hpp"
#include "runtime/wire/wire_time.hpp"

namespace troupe {

namespace {

constexpr uint64_t ms = 1'000'000;  // nanoseconds

}  // namespace

void ucx_links::attempt(ucx_peer& peer) {
  begin_session(peer, peer.incarnation);
  ucp_ep_params_t parameters{};
  parameters.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  parameters.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  parameters.sockaddr.addr = peer.address.get();
  parameters.sockaddr.addrlen = peer.address.length;
  auto made = make_link(parameters, &peer);
  if (!made) {
    drop(peer, made.failure().message, false, ending::broken);
    return;
  }
  (*made)->address = peer.address.storage;
  (*made)->automatic = !peer.deliberate;
  greet(**made, greeting_phase::hello, nullptr);
}

void ucx_links::schedule(ucx_peer& peer) {
  peer.retry_delay_ms = peer.retry_delay_ms == 0 ? options_.reconnect_min_ms
                                                 : std::min(peer.retry_delay_ms, options_.reconnect_max_ms / 2 + 1) * 2;
  peer.retry_delay_ms = std::min(peer.retry_delay_ms, options_.reconnect_max_ms);
  peer.retry_ns = wire_time_ns() + peer.retry_delay_ms * ms;
  next_retry_ns_ = retrying_ == 0 ? peer.retry_ns : std::min(next_retry_ns_, peer.retry_ns);
  set_state(peer, peer_state::retrying);
}

bool ucx_links::check_retries(uint64_t now_ns) {
  if (now_ns < next_retry_ns_) return false;
  bool any = false;
  peers_.for_each([&](ucx_peer& peer) {
    if (peer.state != peer_state::retrying || now_ns < peer.retry_ns) return;
    any = true;
    counters_.reconnections.add();
    attempt(peer);
  });
  next_retry_ns_ = UINT64_MAX;
  peers_.for_each([&](const ucx_peer& peer) {
    if (peer.state == peer_state::retrying) next_retry_ns_ = std::min(next_retry_ns_, peer.retry_ns);
  });
  return any;
}

// No reason for a refusal goes away by itself, so none is knocked against twice.
void ucx_links::answer_refusal(ucx_link& link, const greeting& said) {
  const std::string reason = "it refused the connection: " + std::string(describe(said.reason));
  ucx_peer* const peer = link.peer;
  if (peer != nullptr && link.automatic && peer->deliberate && said.reason == refusal::parted) {
    // It was asked for while the attempt was under way: once more, and saying so.
    peer->outcome_owed = false;
    lose(link, reason);
    peer->outcome_owed = true;
    return;
  }
  if (peer != nullptr && link.made_here) {
    peer->wanted = false;
    spdlog::warn("node {} cannot connect to node {} incarnation {} at {}: {}; {}", options_.node, peer->node,
                 peer->incarnation, to_string(link.address), describe(said.reason), advice_for(said.reason));
  }
  lose(link, reason);
}

void ucx_links::answer_foreign(ucx_link& link, const foreign_greeting& said) {
  std::string sentence = "node " + std::to_string(said.node) + " at " + to_string(link.address);
  if (said.reversed) {
    sentence += " has the other byte order; all nodes of a cluster must have the same";
  } else {
    sentence += " speaks wire version " + std::to_string(said.version) + ", this one " +
                std::to_string(greeting::current_version) + "; run the same build on all nodes";
  }
  // Strangers may knock as often as they like.
  const uint64_t now_ns = wire_time_ns();
  if (link.made_here || now_ns - warned_ns_ > 1000 * ms) {
    if (!link.made_here) warned_ns_ = now_ns;
    spdlog::warn("{}", sentence);
  }
  if (link.made_here || link.peer != nullptr) {
    if (link.peer != nullptr) link.peer->wanted = false;
    lose(link, sentence);
    return;
  }
  if (said.phase == greeting_phase::refuse) return;
  counters_.refused_greetings.add();
  greet(link, greeting_phase::refuse, nullptr, said.reversed ? refusal::wrong_byte_order : refusal::wrong_version);
  link.deadline_ns = std::min(link.deadline_ns, now_ns + 1000 * ms);
}

// When both sides have connected at the same moment, the one that the higher node made goes; that node
// begins. It says so when all that it sent there has been received. So does the other side then, which
// tells it that nothing is under way on that connection in either direction, and it closes it.
void ucx_links::settle(ucx_peer& peer) {
  if (options_.node < peer.node) return;
  ucx_link* made_here = nullptr;
  ucx_link* made_there = nullptr;
  for (const auto& link : links_)
    if (link->peer == &peer && link->greeted && !link->failed && !link->retiring)
      (link->made_here ? made_here : made_there) = link.get();
  if (made_here == nullptr || made_there == nullptr) return;
  peer.sends_on = made_there;
  made_here->retiring = true;
  ++retiring_;
}

void ucx_links::answer_retire(ucx_link& link) {
  if (link.peer == nullptr || !link.greeted) return;
  if (link.retiring) {
    link.peer = nullptr;
    link.unwanted = true;
    attention_ = true;
    return;
  }
  ucx_peer& peer = *link.peer;
  ucx_link* other = nullptr;
  for (const auto& one : links_)
    if (one.get() != &link && one->peer == &peer && one->greeted && !one->failed && !one->retiring) other = one.get();
  if (other == nullptr) {
    drop(peer, "it gave up its only connection", true, ending::broken);
    return;
  }
  if (peer.sends_on == &link) peer.sends_on = other;
  link.retiring = true;
  ++retiring_;
}

bool ucx_links::say_retired() {
  bool any = false;
  for (const auto& link : links_) {
    if (!link->retiring || link->retire_said || link->unwanted || link->failed || link->sends != 0) continue;
    greet(*link, greeting_phase::retire, nullptr);
    link->retire_said = true;
    --retiring_;
    any = true;
  }
  return any;
}

}  // namespace troupe
