#include "runtime/wire/micro_batch.hpp"

#include <xxhash.h>

#include <cstring>

namespace troupe {

namespace {

constexpr size_t checked_header_bytes = offsetof(micro_batch_header, header_checksum);
constexpr uint32_t rows_max = 65535;  // a pair_entry's row has 16 bits
constexpr uint32_t pairs_max = 1U << 24U;
constexpr uint32_t hidden_max = 1U << 16U;

uint64_t header_checksum(const micro_batch_header& header) { return XXH3_64bits(&header, checked_header_bytes); }

error malformed(const char* what) {
  return {errc::malformed, std::string("a micro-batch from a peer was refused: ") + what +
                               "; the sender runs another version or the link corrupts data"};
}

}  // namespace

uint64_t row_bytes(wire_dtype dtype, uint32_t hidden, uint64_t rows) {
  switch (dtype) {
    case wire_dtype::f32: return rows * hidden * 4;
    case wire_dtype::bf16: return rows * hidden * 2;
    case wire_dtype::fp8: return rows * hidden + rows * ((hidden + fp8_tile - 1) / fp8_tile) * 4;
  }
  return 0;
}

uint64_t payload_bytes(wire_dtype dtype, uint32_t hidden, uint32_t pair_count, uint64_t rows) {
  return rows_offset(pair_count) + row_bytes(dtype, hidden, rows);
}

void seal(micro_batch& message, bool with_payload) {
  auto& header = message.header;
  if (with_payload && message.payload) {
    header.flags |= 1U;
    header.payload_checksum = XXH3_64bits(message.payload->data, message.payload->size);
  }
  header.header_checksum = header_checksum(header);
}

const char* wrong_counts(const micro_batch_header& header) {
  if (header.kind == message_kind::bulk) return nullptr;
  if (header.kind != message_kind::dispatch && header.kind != message_kind::combine) return "its kind is unknown";
  if (header.dtype > wire_dtype::fp8) return "its dtype is unknown";
  if (header.kind == message_kind::combine && header.status != combine_status::ok)
    return header.payload_bytes == 0 ? nullptr : "a refusal carries a payload";
  if (header.hidden == 0 || header.hidden > hidden_max || header.row_count > rows_max || header.pair_count > pairs_max)
    return "a count in its header is out of range";
  const uint64_t rows_carried = header.kind == message_kind::dispatch ? header.row_count : header.pair_count;
  if (header.payload_bytes != payload_bytes(header.dtype, header.hidden, header.pair_count, rows_carried))
    return "its payload length does not follow from its counts";
  return nullptr;
}

result<void> validate_header(const micro_batch_header& header) {
  if (header.magic != micro_batch_header::magic_value) return malformed("its magic number is wrong");
  if (header.header_checksum != header_checksum(header)) return malformed("its header checksum does not match");
  const char* wrong = wrong_counts(header);
  return wrong == nullptr ? result<void>{} : malformed(wrong);
}

result<void> validate_payload(const micro_batch& message) {
  const auto& header = message.header;
  const uint64_t size = message.payload ? message.payload->size : 0;
  if (header.payload_bytes != size) return malformed("its payload is not as long as its header says");
  if ((header.flags & 1U) != 0 && message.payload &&
      header.payload_checksum != XXH3_64bits(message.payload->data, size))
    return malformed("its payload checksum does not match");
  if (header.kind == message_kind::bulk || size == 0) return {};
  for (const auto& entry : pairs(message))
    if (entry.row >= header.row_count) return malformed("an entry names a row that it does not carry");
  return {};
}

result<void> validate(const micro_batch& message) {
  if (auto checked = validate_header(message.header); !checked) return checked;
  return validate_payload(message);
}

std::span<pair_entry> pairs(const micro_batch& message) {
  if (!message.payload) return {};
  return {reinterpret_cast<pair_entry*>(message.payload->data), message.header.pair_count};
}

std::byte* rows(const micro_batch& message) {
  return message.payload ? message.payload->data + rows_offset(message.header.pair_count) : nullptr;
}

std::byte* scales(const micro_batch& message, uint32_t row) {
  const auto& header = message.header;
  const uint64_t tiles = (header.hidden + fp8_tile - 1) / fp8_tile;
  return rows(message) + uint64_t{header.row_count} * header.hidden + row * tiles * sizeof(float);
}

}  // namespace troupe
