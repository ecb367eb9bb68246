#include "runtime/wire/ucx_greeting.hpp"

#include <xxhash.h>

#include <cstring>

namespace troupe {

namespace {

constexpr size_t checked_bytes = offsetof(greeting, checksum);

error malformed(const char* what) {
  return {errc::malformed,
          std::string("a connection was refused: ") + what + "; what connected is not a node of this kind"};
}

}  // namespace

std::string_view describe(refusal reason) {
  switch (reason) {
    case refusal::none: return "it gave no reason";
    case refusal::wrong_node: return "the address belongs to another node";
    case refusal::wrong_incarnation: return "the address belongs to another incarnation of the node";
    case refusal::stale_sender: return "it knows a later incarnation of this node, or has given this one up";
    case refusal::wrong_cluster: return "it belongs to another cluster";
    case refusal::wrong_version: return "it runs another version";
    case refusal::wrong_byte_order: return "it has another byte order";
    case refusal::parted: return "it has disconnected this node";
  }
  return "for a reason this version does not know";
}

std::string_view advice_for(refusal reason) {
  switch (reason) {
    case refusal::wrong_node: return "check the address that the node announces";
    case refusal::wrong_incarnation: return "the node has restarted: connect to its present incarnation";
    case refusal::stale_sender: return "this node must join again as a new incarnation";
    case refusal::wrong_cluster: return "give all nodes of a cluster the same cluster key";
    case refusal::wrong_byte_order: return "all nodes of a cluster must have the same byte order";
    case refusal::parted: return "connect to it on purpose if it is still needed";
    case refusal::none:
    case refusal::wrong_version: break;
  }
  return "run the same build on all nodes";
}

std::optional<foreign_greeting> read_foreign(const void* bytes, size_t size) {
  greeting start;
  constexpr size_t common_bytes = offsetof(greeting, unit);
  if (size < common_bytes) return {};
  std::memcpy(static_cast<void*>(&start), bytes, common_bytes);
  if (start.magic == __builtin_bswap32(greeting::magic_value))
    return foreign_greeting{true, __builtin_bswap16(start.version), start.phase, __builtin_bswap16(start.node)};
  if (start.magic != greeting::magic_value || start.version == greeting::current_version) return {};
  return foreign_greeting{false, start.version, start.phase, start.node};
}

void seal(greeting& message) { message.checksum = XXH3_64bits(&message, checked_bytes); }

result<greeting> read_greeting(const void* bytes, size_t size) {
  greeting out;
  if (size != sizeof out) return malformed("its greeting has another length");
  std::memcpy(&out, bytes, sizeof out);
  if (out.magic == __builtin_bswap32(greeting::magic_value)) return malformed("its byte order is big-endian");
  if (out.magic != greeting::magic_value) return malformed("its greeting has a wrong magic number");
  if (out.checksum != XXH3_64bits(&out, checked_bytes)) return malformed("its greeting's checksum does not match");
  if (out.phase < greeting_phase::hello || out.phase > greeting_phase::retire)
    return malformed("its greeting's phase is unknown");
  if (out.session == 0 && out.phase <= greeting_phase::ready) return malformed("its greeting names no session");
  const bool introduces = out.phase == greeting_phase::hello || out.phase == greeting_phase::welcome;
  if (introduces && (out.bulk_chunk_bytes < bulk_chunk_bytes_min || out.bulk_chunk_bytes > bulk_chunk_bytes_max))
    return malformed("its greeting's size of bulk fragments is out of range");
  return out;
}

}  // namespace troupe
