#include "runtime/wire/ucx_wire_options.hpp"

#include <algorithm>
#include <bit>
#include <string>

#include "runtime/wire/ucx_greeting.hpp"
#include "runtime/wire/ucx_peer.hpp"

namespace troupe {

namespace {

error wrong(const std::string& what) { return {errc::invalid_argument, "the wire's options are wrong: " + what}; }

}  // namespace

result<void> validate(const ucx_wire_options& options) {
  if (options.payload_bytes_max == 0) return wrong("payload_bytes_max is 0");
  if (options.rendezvous_bytes < 512) return wrong("rendezvous_bytes is below 512");
  if (options.bulk_chunk_bytes < options.rendezvous_bytes || options.bulk_chunk_bytes < bulk_chunk_bytes_min ||
      options.bulk_chunk_bytes > bulk_chunk_bytes_max || options.bulk_chunk_bytes % 64 != 0)
    return wrong("bulk_chunk_bytes must be a multiple of 64 from rendezvous_bytes (and 4096) to 1 GiB");
  if (options.bulk_chunks_in_flight == 0 || options.bulk_chunks_in_flight > 1024)
    return wrong("bulk_chunks_in_flight must be 1 to 1024");
  if (options.bulk_gap_us > 1'000'000 || options.bulk_wait_max_us > 1'000'000)
    return wrong("bulk_gap_us and bulk_wait_max_us may be a second at most");
  if (options.connections_max == 0) return wrong("connections_max is 0");
  if (options.handshake_timeout_ms == 0) return wrong("handshake_timeout_ms is 0: no connection could be made");
  if (options.reconnect_min_ms == 0 || options.reconnect_max_ms < options.reconnect_min_ms)
    return wrong("reconnect_min_ms must be at least 1, and reconnect_max_ms no less than it");
  if (options.close_timeout_ms == 0) return wrong("close_timeout_ms is 0: UCX could not end its requests");
  if (options.silence_max_ms != 0 && options.silence_max_ms < 40)
    return wrong("silence_max_ms is below 40, shorter than a busy machine's pauses");
  for (const auto& one : options.classes) {
    if (one.messages_in_flight_max == 0 || one.bytes_in_flight_max == 0)
      return wrong("a class may have nothing in flight");
    if (one.messages_in_flight_max > credit_account::messages_limit ||
        one.bytes_in_flight_max > credit_account::bytes_limit ||
        options.payload_bytes_max > credit_account::bytes_limit)
      return wrong("more may be in flight than can be counted (1 TiB, 1048576 messages)");
    if (one.held_max == 0) return wrong("held_max is 0: no large message could wait for memory");
    const uint64_t pool = one.receive_pool != nullptr ? one.receive_pool->bytes_max() : one.receive_bytes_max;
    if (pool < std::bit_ceil(options.rendezvous_bytes))
      return wrong("a class's receive memory is smaller than one message of rendezvous_bytes");
  }
  return {};
}

uint64_t spin_after_ns(const ucx_wire_options& options, uint64_t payload_bytes) {
  if (payload_bytes < options.rendezvous_bytes) return 0;
  return std::min(2 * payload_bytes, uint64_t{options.spin_large_us} * 1000);
}

}  // namespace troupe
