#include "runtime/wire/ucx_wire.hpp"

#include <utility>

#include "runtime/wire/ucx_engine.hpp"

namespace troupe {

ucx_wire::ucx_wire(std::unique_ptr<engine> started) : engine_(std::move(started)) {}

ucx_wire::~ucx_wire() = default;

result<std::unique_ptr<ucx_wire>> ucx_wire::make(ucx_wire_options options) {
  if (auto checked = validate(options); !checked) return checked.failure();
  auto listen = parse_address(options.listen);
  if (!listen) return listen.failure();
  auto engine = std::make_unique<ucx_wire::engine>(std::move(options), *listen);
  if (auto started = engine->start(); !started) return started.failure();
  return std::unique_ptr<ucx_wire>(new ucx_wire(std::move(engine)));
}

std::string ucx_wire::listen_address() const { return engine_->listen_address(); }

result<void> ucx_wire::connect(uint16_t node, uint32_t incarnation, std::string_view address) {
  if (node == engine_->options().node) return error{errc::invalid_argument, "a node needs no connection to itself"};
  auto parsed = parse_address(address);
  if (!parsed) return parsed.failure();
  engine_->connect(node, incarnation, *parsed);
  return {};
}

void ucx_wire::disconnect(uint16_t node) { engine_->disconnect(node); }

void ucx_wire::refuse(uint16_t node, uint32_t incarnation) { engine_->refuse(node, incarnation); }

void ucx_wire::cut(uint16_t node) { engine_->cut(node); }

void ucx_wire::attach(uint16_t slot, receiver to) { engine_->slots().attach(slot, std::move(to)); }

void ucx_wire::detach(uint16_t slot) { engine_->slots().detach(slot); }

uint32_t ucx_wire::handlers_most() const { return engine_->options().handlers_most; }

bool ucx_wire::begin_turn() { return engine_->begin_turn(); }

void ucx_wire::progress() { engine_->progress(); }

void ucx_wire::wait(function_ref<bool()> ready, uint64_t until_ns) { engine_->wait(ready, until_ns); }

void ucx_wire::end_turn() { engine_->end_turn(); }

void ucx_wire::end_wait() { engine_->end_wait(); }

void ucx_wire::settle() { engine_->settle(); }

result<void> ucx_wire::send(endpoint to, micro_batch message) {
  const auto& options = engine_->options();
  auto& header = message.header;
  header.source_node = options.node;
  header.source_incarnation = options.incarnation;
  header.destination_slot = to.slot;
  header.destination_incarnation = to.incarnation;
  header.payload_bytes = message.payload ? message.payload->size : 0;
  header.payload_checksum = 0;
  if (message_class(header.kind) == bulk_class) header.detail = 0;  // the wire's own: see `micro_batch.hpp`
  header.flags &= 0xFEU;  // a header made from a received one may still claim a checksum
  if (header.payload_bytes > options.payload_bytes_max)
    return error{errc::invalid_argument, "a micro-batch cannot be sent: its payload exceeds payload_bytes_max"};
  if (const char* wrong = wrong_counts(header); wrong != nullptr)
    return error{errc::invalid_argument, std::string("a micro-batch cannot be sent: ") + wrong};
  return to.node == options.node ? engine_->deliver_here(to, std::move(message))
                                 : engine_->send(to, std::move(message));
}

wire_statistics ucx_wire::statistics() const {
  const auto& from = engine_->counters();
  wire_statistics out;
  out.messages_sent = from.messages_sent.get() + from.messages_here.get();
  out.messages_received = from.messages_received.get() + from.messages_here.get() - from.unaddressed_here.get();
  out.bytes_sent = from.bytes_sent.get() + from.bytes_here.get();
  out.bytes_received = from.bytes_received.get() + from.bytes_here.get();
  out.bytes_in_flight = engine_->bytes_in_flight();
  out.connections = from.links.get();
  out.reconnections = from.reconnections.get();
  out.messages_dropped = from.malformed.get() + from.stale.get() + from.unaddressed.get() +
                         from.unaddressed_here.get() + from.overflowed.get() + from.cut_off.get();
  return out;
}

ucx_wire_counters ucx_wire::counters() const {
  const auto& from = engine_->counters();
  ucx_wire_counters out;
  out.malformed = from.malformed.get();
  out.stale = from.stale.get();
  out.unaddressed = from.unaddressed.get() + from.unaddressed_here.get();
  out.overflowed = from.overflowed.get();
  out.cut_off = from.cut_off.get();
  out.sequence_gaps = from.sequence_gaps.get();
  out.held = from.held.get();
  out.assemblies = from.assemblies.get();
  out.quarantined = from.quarantined.get();
  out.refused_greetings = from.refused_greetings.get();
  out.bulk_fragments = from.bulk_fragments.get();
  out.peers_up = from.peers_up.get();
  out.links = from.links.get();
  out.reconnections = from.reconnections.get();
  out.receive_queues_blocked = from.receive_queues_blocked.get();
  out.sleeps = from.sleeps.get();
  return out;
}

}  // namespace troupe
