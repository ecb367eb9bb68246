// What two wires say to each other about their connection.
//
//   connector                     acceptor
//      hello  ------------------>            who I am, whom I expect, the session I send under
//             <------------------  welcome   the same, and the connector's session echoed
//      ready  ------------------>            only now does the acceptor send data
// or          <------------------  refuse    with a reason; the connector closes
//   either side, later: bye (it leaves on purpose), ping (it is still there), retire (it sends no more on
//   this connection, the peer having another; all that it sent there has been received).
//
// A session is one span of a peer being known; data carries it, so that what was sent before a
// disconnection is not taken for something sent after it. The third step makes sure that a side knows
// the other's session before data under it arrives, whatever order the transport delivers in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "runtime/error.hpp"

namespace troupe {

// Limits of `greeting::bulk_chunk_bytes`.
constexpr uint64_t bulk_chunk_bytes_min = 4096;
constexpr uint64_t bulk_chunk_bytes_max = uint64_t{1} << 30U;

enum class greeting_phase : uint8_t { hello = 1, welcome = 2, ready = 3, refuse = 4, bye = 5, ping = 6, retire = 7 };

enum class refusal : uint8_t {
  none = 0,
  wrong_node = 1,         // the address belongs to another node
  wrong_incarnation = 2,  // the address belongs to another incarnation of the node
  stale_sender = 3,       // a later incarnation of the sender is known, or this one was given up
  wrong_cluster = 4,      // another cluster key
  wrong_version = 5,
  wrong_byte_order = 6,
  parted = 7,  // it has disconnected the sender, and this was the wire's own attempt to connect anew
};

// A sentence's end for people: "the address belongs to another node"; and what to do about it.
std::string_view describe(refusal reason);
std::string_view advice_for(refusal reason);

// 64 bytes, little-endian, offsets as written. The fields up to `node` keep their places in every
// version, so that versions can tell each other apart.
struct greeting {
  uint32_t magic = magic_value;          //  0  "TRPL"; reads reversed from a big-endian machine
  uint16_t version = current_version;    //  4
  greeting_phase phase{};                //  6
  refusal reason{};                      //  7  refuse only
  uint16_t node = 0;                     //  8  of the sender
  uint16_t unit = 0;                     // 10  deployment unit of the sender
  uint32_t incarnation = 0;              // 12  of the sender
  uint16_t destination_node = 0;         // 16
  uint16_t flags = 0;                    // 18  bit 0: a connection made anew, by the wire itself
  uint32_t destination_incarnation = 0;  // 20
  uint64_t session = 0;                  // 24  the sender's data will carry it; never 0
  uint64_t destination_session = 0;      // 32  echo of the other side's; 0 in a hello
  uint64_t cluster_key = 0;              // 40  equal on all nodes of a cluster
  uint64_t bulk_chunk_bytes = 0;         // 48  the sender's bulk fragments have so many bytes, the last one fewer
  uint64_t checksum = 0;                 // 56  XXH3-64 of bytes 0..55

  static constexpr uint32_t magic_value = 0x4c505254U;
  static constexpr uint16_t current_version = 3;  // of messages and of packed weights that they carry
  static constexpr uint16_t flag_automatic = 1;
};
static_assert(sizeof(greeting) == 64);

void seal(greeting& message);

// A greeting of another version or byte order, as far as it can be read.
struct foreign_greeting {
  bool reversed = false;  // from a machine of the other byte order
  uint16_t version = 0;
  greeting_phase phase{};
  uint16_t node = 0;
};

// Nothing when the bytes are of this version and byte order, or no greeting at all.
std::optional<foreign_greeting> read_foreign(const void* bytes, size_t size);

// Reads a greeting of this version from a peer's bytes.
// Fails: malformed.
result<greeting> read_greeting(const void* bytes, size_t size);

}  // namespace troupe
