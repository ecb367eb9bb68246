// The one data-plane message.
//
// A micro-batch is a fixed-size header and a reference-counted payload. Experts are pure and messages
// are identified, so every dispatch may be retried, duplicated or sent to another replica; the shard
// takes the first valid answer for (micro-batch, layer, row, expert) and ignores the rest.
//
// Payload of a dispatch:
//   pair_count x `pair_entry`                      which (row, expert) products are wanted
//   padding to a multiple of 64 bytes
//   row_count x hidden activations in `dtype`      each row once, however many experts want it
//   (dtype fp8 only) row_count x ceil(hidden/128) FP32 scales
// Payload of a combine:
//   pair_count x `pair_entry`                      the entries of the dispatch, echoed
//   padding to a multiple of 64 bytes
//   pair_count x hidden expert outputs in `dtype`  in the order of the entries, not weighted by gates
// Payload of bulk messages: defined by their `bulk_kind`. A wire between processes sends a large one in
// fragments: each has the message's own header but for `detail`, its byte offset in the payload, and the
// header checksum; `payload_bytes` and `payload_checksum` are those of the whole message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/error.hpp"
#include "runtime/memory/buffer.hpp"

namespace troupe {

enum class message_kind : uint8_t { dispatch = 1, combine = 2, bulk = 3 };

// Dispatch, combine and bulk have separate credits and memory, so that none can block another.
// An unknown kind counts as bulk.
constexpr size_t message_class_count = 3;
constexpr size_t message_class(message_kind kind) {
  return kind == message_kind::dispatch ? 0 : kind == message_kind::combine ? 1 : 2;
}

constexpr size_t bulk_class = message_class(message_kind::bulk);

// What a combine says about the dispatch it answers.
enum class combine_status : uint8_t {
  ok = 0,
  stale_epoch = 1,     // the dispatch's epoch is retired; `epoch` names the current one; no payload rows
  unknown_expert = 2,  // this host holds no ready replica of an expert that was asked for
  bad_output = 3,      // an expert produced NaN or infinity
};

enum class wire_dtype : uint8_t { f32 = 0, bf16 = 1, fp8 = 2 };

// Values that share one FP32 scale in an FP8 row.
constexpr uint32_t fp8_tile = 128;

// Bytes of `rows` rows of `hidden` values, FP8 scales included.
uint64_t row_bytes(wire_dtype dtype, uint32_t hidden, uint64_t rows);

// 12 bytes, little-endian.
struct pair_entry {
  uint16_t row;     // row of this payload, 0 .. row_count-1
  uint16_t expert;  // routed expert of the header's layer
  uint16_t k_slot;  // position in the token's own top-k list
  uint16_t zero;    // reserved
  float gate;       // gate weight; used only when outputs are summed at the destination
};
static_assert(sizeof(pair_entry) == 12);

// 128 bytes, little-endian, offsets as written.
struct micro_batch_header {
  uint32_t magic = magic_value;          //   0  "TRP1"
  message_kind kind{};                   //   4
  wire_dtype dtype{};                    //   5  of the activations or outputs
  combine_status status{};               //   6  combine only
  uint8_t flags = 0;                     //   7  bit 0: payload_checksum is set
  uint16_t unit = 0;                     //   8  deployment unit
  uint16_t source_node = 0;              //  10
  uint16_t source_slot = 0;              //  12  endpoint slot of the sender on its node
  uint16_t destination_slot = 0;         //  14  endpoint slot of the addressee on its node
  uint32_t source_incarnation = 0;       //  16
  uint32_t destination_incarnation = 0;  // 20  refused there unless it is the node's own
  uint32_t micro_batch = 0;              //  24  the shard's micro-batch, echoed by the combine
  uint32_t layer = 0;                    //  28
  uint64_t step = 0;                     //  32  the shard's step, echoed
  uint64_t epoch = 0;                    //  40  placement epoch
  uint32_t attempt = 0;                  //  48  0 for the first send of these rows, echoed
  uint32_t dispatch_id = 0;              //  52  the shard's own number of this dispatch, echoed
  uint32_t row_count = 0;                //  56
  uint32_t pair_count = 0;               //  60
  uint32_t hidden = 0;                   //  64  values a row
  uint32_t bulk_kind = 0;                //  68  bulk only
  uint64_t payload_bytes = 0;            //  72
  uint64_t payload_checksum = 0;         //  80  XXH3-64 of the payload when flags bit 0 is set, else 0
  uint64_t send_time_ns = 0;             //  88  sender's steady (or virtual) clock at `send`; set by the wire if 0
  uint64_t sequence = 0;                 //  96  per (sender, receiver, class); set by the wire
  uint64_t session = 0;                  // 104  of the sender's connection; set and checked by the wire
  uint64_t detail = 0;           // 112  combine: ns the host's device computed for it; bulk: see above, the wire's
  uint64_t header_checksum = 0;  // 120  XXH3-64 of bytes 0..119; set and checked by the wire

  static constexpr uint32_t magic_value = 0x31505254U;
};
static_assert(sizeof(micro_batch_header) == 128);

struct micro_batch {
  micro_batch_header header;
  buffer_ref payload;         // empty when payload_bytes is 0
  uint64_t delivered_ns = 0;  // receiver's clock when the wire had all of it; set by the wire, does not travel
};

// Byte offset of the activations or outputs behind `pair_count` entries.
constexpr uint64_t rows_offset(uint32_t pair_count) {
  return (uint64_t{pair_count} * sizeof(pair_entry) + 63U) & ~uint64_t{63U};
}

// Payload bytes of a dispatch (`rows` = row_count) or a combine (`rows` = pair_count).
uint64_t payload_bytes(wire_dtype dtype, uint32_t hidden, uint32_t pair_count, uint64_t rows);

// Sets the header's checksum; with `with_payload` the payload's too.
void seal(micro_batch& message, bool with_payload);

// What is wrong with the kind, counts and `payload_bytes` of a header, or null: also tells a sender
// what its addressee would refuse.
const char* wrong_counts(const micro_batch_header& header);

// The parts of `validate`, for a wire that must know before it takes memory for the payload: magic,
// header checksum and counts; then length, payload checksum and entries.
// Fails: malformed.
result<void> validate_header(const micro_batch_header& header);
result<void> validate_payload(const micro_batch& message);

// Checks a message that came from a peer: magic, checksums, and that its counts and lengths agree
// with each other and with the payload (never trust a length that a peer sent).
// Fails: malformed.
result<void> validate(const micro_batch& message);

// Views of a validated message's parts.
std::span<pair_entry> pairs(const micro_batch& message);
std::byte* rows(const micro_batch& message);
// Of a dispatch in FP8: the address of `row`'s scales [ceil(hidden/128)], FP32, perhaps unaligned.
std::byte* scales(const micro_batch& message, uint32_t row);

}  // namespace troupe
