#include "runtime/wire/ucx_assembly.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace troupe {

namespace {

// What all fragments of a message have in common.
micro_batch_header common_part(micro_batch_header header) {
  header.detail = 0;
  header.header_checksum = 0;
  return header;
}

}  // namespace

const char* wrong_fragment(const micro_batch_header& header, uint64_t size, uint64_t chunk_bytes) {
  if (header.kind != message_kind::bulk) return "it is not bulk";
  if (chunk_bytes == 0 || header.payload_bytes <= chunk_bytes) return "its message needs no fragments";
  if (header.detail % chunk_bytes != 0) return "its offset is between two fragments";
  if (header.detail >= header.payload_bytes) return "its offset is beyond its message";
  if (size != std::min(chunk_bytes, header.payload_bytes - header.detail)) return "its length is not a fragment's";
  return nullptr;
}

bulk_assembly* bulk_assemblies::find(const ucx_peer& peer, uint64_t sequence) const {
  for (const auto& one : open_)
    if (one->peer == &peer && !one->given_up && one->message.header.sequence == sequence) return one.get();
  return nullptr;
}

bulk_assembly& bulk_assemblies::open(const micro_batch_header& header, ucx_peer& peer) {
  auto& made = *open_.emplace_back(std::make_unique<bulk_assembly>());
  made.message.header = common_part(header);
  made.peer = &peer;
  made.bytes_missing = header.payload_bytes;
  made.chunk_bytes = peer.bulk_chunk_bytes;
  made.announced.resize((header.payload_bytes + made.chunk_bytes - 1) / made.chunk_bytes);
  return made;
}

bool bulk_assemblies::announce(bulk_assembly& whole, const micro_batch_header& header) {
  const auto common = common_part(header);
  if (std::memcmp(&common, &whole.message.header, sizeof common) != 0) return false;
  const uint64_t index = header.detail / whole.chunk_bytes;
  if (whole.announced[index]) return false;
  whole.announced[index] = true;
  return true;
}

void bulk_assemblies::close(bulk_assembly& whole) {
  const auto found = std::ranges::find_if(open_, [&](const auto& one) { return one.get() == &whole; });
  std::swap(*found, open_.back());
  open_.pop_back();
}

bulk_assembly* bulk_assemblies::any_of(const ucx_peer& peer) const {
  for (const auto& one : open_)
    if (one->peer == &peer && !one->given_up) return one.get();
  return nullptr;
}

}  // namespace troupe
