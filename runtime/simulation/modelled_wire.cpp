#include "runtime/simulation/modelled_wire.hpp"

#include <algorithm>
#include <limits>

namespace troupe {

namespace {

constexpr int network_process = std::numeric_limits<int>::min();

}  // namespace

bool modelled_network::carry(const modelled_wire& from, const endpoint& to, micro_batch message) {
  const auto at = wires_.find(to.node);
  if (at == wires_.end() || at->second->incarnation() != to.incarnation) return false;
  if (time_.dead(from.process()) || time_.dead(at->second->process())) return false;
  if (observer_) observer_(message.header, to);
  if (from.node() == to.node) {
    hand_over(to, std::move(message));
    return true;
  }
  const link_identity identity{from.node(), to.node, seed_};
  const auto [found, added] = links_.try_emplace(std::pair(identity.from, identity.to), this, identity,
                                                 shapes_.find(identity.from, identity.to));
  found->second.queue.push(to, std::move(message), virtual_ns(time_.now()));
  wake_at_next(found->second);
  return true;
}

void modelled_network::wake_at_next(link& of) {
  const auto next_ns = of.queue.next_event_ns();
  if (!next_ns) return;
  const virtual_clock::time_point next{std::chrono::nanoseconds(*next_ns)};
  if (of.wakes_at && *of.wakes_at <= next) return;
  of.wakes_at = next;
  // On behalf of the network, which never pauses or dies.
  time_.schedule(next, network_process, [woken = &of] { woken->network->serve(*woken); });
}

void modelled_network::serve(link& woken) {
  if (woken.wakes_at != time_.now()) return;  // an earlier event took this one's place
  woken.wakes_at.reset();
  while (auto arrived = woken.queue.pop(virtual_ns(time_.now()))) hand_over(arrived->to, std::move(arrived->message));
  wake_at_next(woken);
}

// To the addressee's process, which may be paused or dead.
void modelled_network::hand_over(const endpoint& to, micro_batch message) {
  const auto at = wires_.find(to.node);
  if (at == wires_.end()) return;
  time_.schedule(time_.now(), at->second->process(),
                 [this, to, carried = std::move(message)]() mutable { arrive(to, std::move(carried)); });
}

void modelled_network::cut(uint16_t a, uint16_t b) {
  for (const auto& direction : {std::pair(a, b), std::pair(b, a)})
    if (const auto at = links_.find(direction); at != links_.end()) at->second.queue.clear();
}

link_counters modelled_network::counters(uint16_t from, uint16_t to) const {
  const auto at = links_.find({from, to});
  return at == links_.end() ? link_counters{} : at->second.queue.counters();
}

uint64_t modelled_network::busiest_link_ns(uint16_t from) const {
  uint64_t most = 0;
  for (auto at = links_.lower_bound({from, uint16_t{0}}); at != links_.end() && at->first.first == from; ++at)
    most = std::max(most, at->second.queue.counters().busy_ns);
  return most;
}

void modelled_network::arrive(const endpoint& to, micro_batch message) {
  const auto at = wires_.find(to.node);
  if (at == wires_.end() || at->second->incarnation() != to.incarnation) return;
  at->second->deliver(to.slot, std::move(message));
}

modelled_wire::modelled_wire(std::shared_ptr<modelled_network> network, int process, uint16_t node,
                             uint32_t incarnation)
    : network_(std::move(network)), process_(process), node_(node), incarnation_(incarnation) {
  network_->attach(node, this);
}

modelled_wire::~modelled_wire() { network_->detach(node_, this); }

result<void> modelled_wire::send(endpoint to, micro_batch message) {
  auto& header = message.header;
  header.destination_slot = to.slot;
  header.destination_incarnation = to.incarnation;
  ++statistics_.messages_sent;
  statistics_.bytes_sent += header.payload_bytes;
  if (header.send_time_ns == 0) header.send_time_ns = virtual_ns(network_->time().now());
  seal(message, false);
  if (!network_->carry(*this, to, std::move(message)))
    return error{errc::unavailable, "node " + std::to_string(to.node) + " cannot be reached"};
  return {};
}

uint64_t modelled_wire::transfer_ns(uint16_t from, uint16_t to, uint64_t bytes) const {
  return from == to ? 0 : network_->shapes().find(from, to).transfer_ns(bytes);
}

wire_statistics modelled_wire::statistics() const {
  auto sum = statistics_;
  sum.link_busy_ns = network_->busiest_link_ns(node_);
  return sum;
}

void modelled_wire::deliver(uint16_t slot, micro_batch message) {
  const auto at = receivers_.find(slot);
  if (at == receivers_.end() || !validate(message)) {
    ++statistics_.messages_dropped;
    return;
  }
  ++statistics_.messages_received;
  statistics_.bytes_received += message.header.payload_bytes;
  message.delivered_ns = virtual_ns(network_->time().now());
  at->second(std::move(message));
}

}  // namespace troupe
