#include "runtime/simulation/modelled_wire.hpp"

#include <algorithm>

namespace troupe {

bool modelled_network::carry(const modelled_wire& from, const endpoint& to, micro_batch message) {
  const auto at = wires_.find(to.node);
  if (at == wires_.end() || at->second->incarnation() != to.incarnation) return false;
  const int process = at->second->process();
  if (time_.dead(from.process()) || time_.dead(process)) return false;
  if (observer_) observer_(message.header, to);
  auto arrival = time_.now();
  if (from.node() != to.node) {
    auto& busy = busy_until_[{from.node(), to.node}];
    const double seconds =
        static_cast<double>(sizeof(micro_batch_header) + message.header.payload_bytes) / model_.bytes_per_s;
    busy = std::max(busy, time_.now()) + std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
    arrival = busy + model_.latency;
  }
  time_.schedule(arrival, process,
                 [this, to, carried = std::move(message)]() mutable { arrive(to, std::move(carried)); });
  return true;
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
  header.send_time_ns = virtual_ns(network_->time().now());
  seal(message, false);
  if (!network_->carry(*this, to, std::move(message)))
    return error{errc::unavailable, "node " + std::to_string(to.node) + " cannot be reached"};
  return {};
}

uint64_t modelled_wire::transfer_ns(uint16_t from, uint16_t to, uint64_t bytes) const {
  if (from == to) return 0;
  const auto& model = network_->model();
  return static_cast<uint64_t>(model.latency.count()) +
         static_cast<uint64_t>(static_cast<double>(bytes) / model.bytes_per_s * 1e9);
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
