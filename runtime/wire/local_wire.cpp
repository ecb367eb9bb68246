#include "runtime/wire/local_wire.hpp"

#include <string>
#include <utility>

#include "runtime/wire/wire_time.hpp"

namespace troupe {

// What the switch shares with senders; it outlives the wire for as long as a delivery is under way.
struct local_switch::node {
  uint32_t incarnation = 0;
  slot_table slots;
  std::atomic<uint64_t> messages_sent{0};
  std::atomic<uint64_t> messages_received{0};
  std::atomic<uint64_t> bytes_sent{0};
  std::atomic<uint64_t> bytes_received{0};
  std::atomic<uint64_t> messages_dropped{0};
};

local_switch::local_switch() = default;
local_switch::~local_switch() = default;

std::shared_ptr<local_switch::node> local_switch::find(uint16_t id) const {
  const std::shared_lock lock(mutex_);
  const auto found = nodes_.find(id);
  return found == nodes_.end() ? nullptr : found->second;
}

local_wire::local_wire(std::shared_ptr<local_switch> network, uint16_t node_id, uint32_t incarnation)
    : network_(std::move(network)),
      node_id_(node_id),
      incarnation_(incarnation),
      self_(std::make_shared<local_switch::node>()) {
  self_->incarnation = incarnation;
  const std::unique_lock lock(network_->mutex_);
  auto& registered = network_->nodes_[node_id];
  TROUPE_CHECK(!registered || registered->incarnation < incarnation,
               "a node joined a local switch on which it already is, with this or a later incarnation");
  registered = self_;
}

local_wire::~local_wire() {
  const std::unique_lock lock(network_->mutex_);
  const auto found = network_->nodes_.find(node_id_);
  // A later incarnation may have taken the place already.
  if (found != network_->nodes_.end() && found->second == self_) network_->nodes_.erase(found);
}

void local_wire::attach(uint16_t slot, receiver to) { self_->slots.attach(slot, std::move(to)); }

void local_wire::detach(uint16_t slot) { self_->slots.detach(slot); }

result<void> local_wire::send(endpoint to, micro_batch message) {
  const auto target = to.node == node_id_ ? self_ : network_->find(to.node);
  if (!target || target->incarnation != to.incarnation)
    return error{errc::unavailable, "node " + std::to_string(to.node) + " incarnation " +
                                        std::to_string(to.incarnation) + " is not on this process's local wire"};
  auto& header = message.header;
  const uint64_t bytes = message.payload ? message.payload->size : 0;
  header.source_node = node_id_;
  header.source_incarnation = incarnation_;
  header.destination_slot = to.slot;
  header.destination_incarnation = to.incarnation;
  header.payload_bytes = bytes;
  if (const char* wrong = wrong_counts(header); wrong != nullptr)
    return error{errc::invalid_argument, std::string("a micro-batch cannot be sent: ") + wrong};
  header.sequence = next_sequence(to.node, header.kind);
  message.delivered_ns = wire_time_ns();
  if (header.send_time_ns == 0) header.send_time_ns = message.delivered_ns;
  seal(message, false);

  self_->messages_sent.fetch_add(1, std::memory_order_relaxed);
  self_->bytes_sent.fetch_add(bytes, std::memory_order_relaxed);
  if (target->slots.deliver(std::move(message))) {
    target->messages_received.fetch_add(1, std::memory_order_relaxed);
    target->bytes_received.fetch_add(bytes, std::memory_order_relaxed);
  } else {
    target->messages_dropped.fetch_add(1, std::memory_order_relaxed);
  }
  return {};
}

wire_statistics local_wire::statistics() const {
  wire_statistics out;
  out.messages_sent = self_->messages_sent.load(std::memory_order_relaxed);
  out.messages_received = self_->messages_received.load(std::memory_order_relaxed);
  out.bytes_sent = self_->bytes_sent.load(std::memory_order_relaxed);
  out.bytes_received = self_->bytes_received.load(std::memory_order_relaxed);
  out.messages_dropped = self_->messages_dropped.load(std::memory_order_relaxed);
  return out;
}

uint64_t local_wire::next_sequence(uint16_t node_id, message_kind kind) {
  const std::lock_guard lock(sequences_mutex_);
  return sequences_[node_id][message_class(kind)]++;
}

}  // namespace troupe
