#include "runtime/wire/ucx_receiver.hpp"

#include <bit>
#include <cstring>
#include <utility>

#include "runtime/wire/ucx_status.hpp"
#include "runtime/wire/wire_time.hpp"

namespace troupe {

ucx_receiver::ucx_receiver(const ucx_wire_options& options, ucx_counters& counters, const peer_table& peers,
                           const slot_table& slots)
    : options_(options), counters_(counters), peers_(peers), slots_(slots) {
  for (size_t c = 0; c < message_class_count; ++c) {
    const auto& one = options.classes[c];
    if (one.receive_pool == nullptr) own_pools_[c] = std::make_unique<buffer_pool>(one.receive_bytes_max);
    pools_[c] = one.receive_pool != nullptr ? one.receive_pool : own_pools_[c].get();
  }
}

ucs_status_t ucx_receiver::on_data(void* argument, const void* header, size_t header_size, void* data, size_t size,
                                   const ucp_am_recv_param_t* parameters) {
  auto& self = *static_cast<ucx_receiver*>(argument);
  micro_batch message;
  ucx_peer* const peer = self.accept(header, header_size, size, message.header);
  if (peer == nullptr) return UCS_OK;
  return self.accepted(std::move(message), *peer, data, parameters->recv_attr);
}

// The peer it came from, or null (and it is counted) when it is not to be received.
ucx_peer* ucx_receiver::accept(const void* header, size_t header_size, size_t size, micro_batch_header& out) {
  if (header_size != sizeof out) {
    counters_.malformed.add();
    return nullptr;
  }
  std::memcpy(&out, header, sizeof out);  // UCX's copy may lie unaligned
  // A payload that no pool of ours could ever hold would block its class for good.
  if (!validate_header(out) || out.payload_bytes != size || size > options_.payload_bytes_max ||
      std::bit_ceil(uint64_t{size}) > pool_of(out).bytes_max()) {
    counters_.malformed.add();
    return nullptr;
  }
  ucx_peer* const peer = peers_.find(out.source_node);
  if (peer == nullptr || out.destination_incarnation != options_.incarnation || peer->state == peer_state::absent ||
      out.source_incarnation != peer->incarnation || out.session != peer->peer_session) {
    counters_.stale.add();
    return nullptr;
  }
  auto& expected = peer->expected_sequence[message_class(out.kind)];
  if (out.sequence != expected) counters_.sequence_gaps.add();
  expected = out.sequence + 1;
  return peer;
}

ucs_status_t ucx_receiver::accepted(micro_batch&& message, ucx_peer& peer, void* data, uint64_t attributes) {
  if (options_.silence_max_ms != 0) peer.heard_ns = wire_time_ns();
  const auto& header = message.header;
  const uint64_t bytes = header.payload_bytes;
  const uint64_t session = header.session;
  if (bytes != 0) {
    // Behind others that wait, so that memory goes to the oldest.
    if (held_[message_class(header.kind)].size == 0) message.payload = pool_of(header).acquire(bytes);
    if (!message.payload) return hold(header, peer, data, attributes);
  }
  if ((attributes & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    arrival* const coming = take_arrival();
    coming->message = std::move(message);
    coming->peer = &peer;
    coming->session = session;
    coming->data = data;
    fetch(coming);
    return UCS_OK;
  }
  if (bytes != 0) std::memcpy(message.payload->data, data, bytes);
  deliver(std::move(message), peer, session);
  return UCS_OK;
}

ucs_status_t ucx_receiver::hold(const micro_batch_header& header, const ucx_peer& peer, void* data,
                                uint64_t attributes) {
  const bool rendezvous = (attributes & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  auto& queue = held_[message_class(header.kind)];
  const bool keepable = rendezvous || (attributes & UCP_AM_RECV_ATTR_FLAG_DATA) != 0;
  if (!keepable || queue.size >= options_.classes[message_class(header.kind)].held_max) {
    counters_.overflowed.add();
    // A rendezvous can be refused to its sender; eager data has already left it.
    return rendezvous ? UCS_ERR_REJECTED : UCS_OK;
  }
  arrival* const held = take_arrival();
  held->message.header = header;
  held->peer = &peer;
  held->session = header.session;
  held->data = data;
  held->rendezvous = rendezvous;
  (queue.last == nullptr ? queue.first : queue.last->next) = held;
  queue.last = held;
  ++queue.size;
  ++held_count_;
  counters_.held.add();
  return UCS_INPROGRESS;
}

bool ucx_receiver::retry_held() {
  bool any = false;
  for (auto& queue : held_) {
    while (queue.first != nullptr) {
      arrival* const oldest = queue.first;
      const auto& header = oldest->message.header;
      oldest->message.payload = pool_of(header).acquire(header.payload_bytes);
      if (!oldest->message.payload) break;
      queue.first = oldest->next;
      if (queue.first == nullptr) queue.last = nullptr;
      --queue.size;
      --held_count_;
      counters_.held.subtract();
      oldest->next = nullptr;
      any = true;
      if (oldest->rendezvous) {
        fetch(oldest);
        continue;
      }
      std::memcpy(oldest->message.payload->data, oldest->data, header.payload_bytes);
      ucp_am_data_release(worker_, oldest->data);
      deliver(std::move(oldest->message), *oldest->peer, oldest->session);
      give_back(oldest);
    }
  }
  return any;
}

void ucx_receiver::drop_held(const ucx_peer& peer) {
  for (auto& queue : held_) {
    arrival_queue kept;
    arrival* one = queue.first;
    while (one != nullptr) {
      arrival* const next = one->next;
      one->next = nullptr;
      if (one->peer == &peer) {
        let_go(one);
      } else {
        (kept.last == nullptr ? kept.first : kept.last->next) = one;
        kept.last = one;
        ++kept.size;
      }
      one = next;
    }
    queue = kept;
  }
}

void ucx_receiver::let_go(arrival* held) {
  ucp_am_data_release(worker_, held->data);
  --held_count_;
  counters_.held.subtract();
  counters_.cut_off.add();
  give_back(held);
}

void ucx_receiver::fetch(arrival* from) {
  from->receiver = this;
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  parameters.cb.recv_am = &ucx_receiver::on_received;
  parameters.user_data = from;
  const ucs_status_ptr_t returned = ucp_am_recv_data_nbx(worker_, from->data, from->message.payload->data,
                                                         from->message.header.payload_bytes, &parameters);
  const ucs_status_t status = ucx_status(returned);
  if (status == UCS_INPROGRESS) {
    ++unfinished_;
  } else {
    finish_fetch(from, status);
  }
}

void ucx_receiver::on_received(void* ucx_request, ucs_status_t status, size_t, void* argument) {
  auto* const fetched = static_cast<arrival*>(argument);
  ucp_request_free(ucx_request);
  --fetched->receiver->unfinished_;
  fetched->receiver->finish_fetch(fetched, status);
}

void ucx_receiver::finish_fetch(arrival* fetched, ucs_status_t status) {
  if (status == UCS_OK) {
    deliver(std::move(fetched->message), *fetched->peer, fetched->session);
  } else {
    counters_.cut_off.add();
  }
  give_back(fetched);
}

void ucx_receiver::deliver(micro_batch&& message, const ucx_peer& peer, uint64_t session) {
  // A transfer that ends after its session may have read memory that its sender used again.
  if (peer.state == peer_state::absent || peer.peer_session != session) {
    counters_.stale.add();
    return;
  }
  if (!validate_payload(message)) {
    counters_.malformed.add();
    return;
  }
  const uint64_t bytes = message.header.payload_bytes;
  message.delivered_ns = wire_time_ns();
  if (slots_.deliver(std::move(message))) {
    counters_.messages_received.add();
    counters_.bytes_received.add(bytes);
  } else {
    counters_.unaddressed.add();
  }
}

buffer_pool& ucx_receiver::pool_of(const micro_batch_header& header) const {
  return *pools_[message_class(header.kind)];
}

ucx_receiver::arrival* ucx_receiver::take_arrival() {
  if (free_ == nullptr) {
    constexpr size_t chunk_size = 256;
    auto& chunk = chunks_.emplace_back(std::make_unique<arrival[]>(chunk_size));
    for (size_t i = 0; i < chunk_size; ++i) {
      chunk[i].next = free_;
      free_ = &chunk[i];
    }
  }
  arrival* const taken = free_;
  free_ = taken->next;
  taken->next = nullptr;
  return taken;
}

void ucx_receiver::give_back(arrival* done) {
  done->message = {};
  done->rendezvous = false;
  done->next = free_;
  free_ = done;
}

}  // namespace troupe
