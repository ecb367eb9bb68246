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
  if (message.header.payload_bytes != size)
    return self.accept_fragment(message.header, *peer, data, size, parameters->recv_attr);
  return self.accepted(std::move(message), *peer, data, parameters->recv_attr);
}

// The peer it came from, or null (and it is counted) when it is not to be received. What remains to be
// checked of a fragment is left to `accept_fragment`.
ucx_peer* ucx_receiver::accept(const void* header, size_t header_size, size_t size, micro_batch_header& out) {
  if (header_size != sizeof out) {
    counters_.malformed.add();
    return nullptr;
  }
  std::memcpy(&out, header, sizeof out);  // UCX's copy may lie unaligned
  // A payload that no pool of ours could ever hold would block its class for good.
  const bool fragment = out.kind == message_kind::bulk && size < out.payload_bytes;
  if (!validate_header(out) || (out.payload_bytes != size && !fragment) ||
      out.payload_bytes > options_.payload_bytes_max || std::bit_ceil(out.payload_bytes) > pool_of(out).bytes_max() ||
      (out.kind == message_kind::bulk && !fragment && out.detail != 0)) {
    counters_.malformed.add();
    return nullptr;
  }
  ucx_peer* const peer = peers_.find(out.source_node);
  if (peer == nullptr || out.destination_incarnation != options_.incarnation || peer->state == peer_state::absent ||
      out.source_incarnation != peer->incarnation || peer->peer_session == 0 || out.session != peer->peer_session) {
    counters_.stale.add();
    return nullptr;
  }
  if (options_.silence_max_ms != 0) peer->heard_ns = wire_time_ns();
  if (fragment) return peer;
  bool in_order = false;
  if (out.kind == message_kind::bulk) {
    (void)open_bulk(*peer, out.sequence, in_order);
  } else {
    ++urgent_received_;
    auto& expected = peer->expected_sequence[message_class(out.kind)];
    in_order = out.sequence == expected;
    expected = out.sequence + 1;
  }
  if (!in_order) counters_.sequence_gaps.add();
  return peer;
}

ucs_status_t ucx_receiver::accepted(micro_batch&& message, ucx_peer& peer, void* data, uint64_t attributes) {
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

ucs_status_t ucx_receiver::hold(const micro_batch_header& header, ucx_peer& peer, void* data, uint64_t attributes) {
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
  enqueue(queue, held);
  return UCS_INPROGRESS;
}

void ucx_receiver::enqueue(arrival_queue& queue, arrival* held) {
  (queue.last == nullptr ? queue.first : queue.last->next) = held;
  queue.last = held;
  count_held(queue, 1);
}

// Takes one out, wherever it stands.
void ucx_receiver::dequeue(arrival_queue& queue, arrival* held) {
  arrival* before = nullptr;
  for (arrival* one = queue.first; one != held; one = one->next) before = one;
  (before == nullptr ? queue.first : before->next) = held->next;
  if (queue.last == held) queue.last = before;
  held->next = nullptr;
  count_held(queue, -1);
}

void ucx_receiver::count_held(arrival_queue& queue, int change) {
  queue.size += static_cast<uint32_t>(change);
  held_count_ += static_cast<uint64_t>(int64_t{change});
  counters_.held.add(static_cast<uint64_t>(int64_t{change}));
}

bool ucx_receiver::retry_held() {
  bool any = false;
  for (auto& queue : held_) {
    while (queue.first != nullptr) {
      arrival* const oldest = queue.first;
      const auto& header = oldest->message.header;
      auto memory = pool_of(header).acquire(header.payload_bytes);
      if (!memory) break;
      any = true;
      if (oldest->part_of != nullptr) {
        oldest->part_of->message.payload = std::move(memory);
        start_waiting(*oldest->part_of);
        continue;
      }
      oldest->message.payload = std::move(memory);
      dequeue(queue, oldest);
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

void ucx_receiver::drop_held(ucx_peer& peer) {
  while (bulk_assembly* const whole = assemblies_.any_of(peer)) {
    counters_.cut_off.add();
    give_up(*whole);
  }
  while (peer.ready_first != nullptr) discard(take_ready(peer));
  for (auto& queue : held_) {
    for (arrival* one = queue.first; one != nullptr;) {
      arrival* const next = one->next;
      if (one->peer == &peer) {
        dequeue(queue, one);
        ucp_am_data_release(worker_, one->data);
        counters_.cut_off.add();
        give_back(one);
      }
      one = next;
    }
  }
}

void ucx_receiver::fetch(arrival* from) {
  from->receiver = this;
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  parameters.cb.recv_am = &ucx_receiver::on_received;
  parameters.user_data = from;
  const auto& header = from->message.header;
  const bool fragment = from->part_of != nullptr;
  std::byte* const to = fragment ? from->part_of->message.payload->data + header.detail : from->message.payload->data;
  const ucs_status_ptr_t returned =
      ucp_am_recv_data_nbx(worker_, from->data, to, fragment ? from->bytes : header.payload_bytes, &parameters);
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
  if (fetched->part_of != nullptr) {
    --fetched->peer->fetching;
    finish_fragment(*fetched->part_of, fetched->bytes, status);
  } else if (status == UCS_OK) {
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
  done->part_of = nullptr;
  done->next_fragment = nullptr;
  done->next = free_;
  free_ = done;
}

}  // namespace troupe
