// An expert's weights on their way from a node that serves them to one that is to.
//
// The receiver asks for one piece after another, at the pace of its bandwidth budget; each request and each
// piece is one bulk message, so that a lost one is asked for again and nothing but one piece is ever under way.
// What travels are the packed matrices as kernels read them, which differ between numeric profiles and CPUs:
// the receiver takes them only in its own layout. Plain data and decisions; the expert hosts send. The source's
// weights are read by the calling thread.
//
// Bulk messages (micro_batch.hpp), header fields beside those of every message:
//   expert_request   layer; row_count: the expert; dispatch_id: number of the transfer; step: offset wanted
//   expert_piece     these echoed; status ok, or unknown_expert without a payload
// Payload of a piece: `piece_head`, then bytes [step, step + n) of gate, up and down, one after the other.
#pragma once

#include <array>
#include <memory>
#include <string_view>

#include "kernels/compute.hpp"
#include "runtime/error.hpp"
#include "runtime/memory/buffer.hpp"
#include "runtime/model/config.hpp"
#include "runtime/model/weights.hpp"
#include "runtime/wire/micro_batch.hpp"

namespace troupe {

enum class bulk_kind : uint32_t { expert_request = 1, expert_piece = 2 };

// 80 bytes, little-endian.
struct piece_head {
  struct matrix {
    uint32_t n = 0;
    uint32_t k = 0;
    uint32_t format = 0;   // kernels::weight_format
    uint32_t storage = 0;  // kernels::packed_parts
    uint64_t bytes = 0;

    bool operator==(const matrix&) const = default;
  };
  uint64_t layout = 0;               //  0  of the kernels that packed it: FNV-1a of their description
  std::array<matrix, 3> matrices{};  //  8  gate, up, down

  bool operator==(const piece_head&) const = default;
};
static_assert(sizeof(piece_head) == 80);

// Bytes of weights in a piece at most.
constexpr uint64_t piece_bytes_max = uint64_t{256} << 10U;

// What the source answers to a request, its payload from `pool` and with a checksum; nothing when the pool has
// no room now. `weights` null: this node does not hold the expert. The wire's fields are left to the sender.
std::optional<micro_batch> answer_request(const micro_batch_header& request, const expert_weights* weights,
                                          const kernels::compute& math, buffer_pool& pool);

// The receiver's side of one transfer.
class expert_arrival {
 public:
  // Requires: `config` and `math` outlive this.
  expert_arrival(const model_config& config, const kernels::compute& math, uint32_t layer, uint32_t expert,
                 uint32_t number);

  // Asks for what comes next. Requires: not complete.
  micro_batch request() const;
  // Takes a piece; false when it is not the one that was asked for. Fails: unavailable (the source does not hold
  // the expert), unsupported (another layout), malformed (it contradicts itself or the model).
  result<bool> take(const micro_batch& piece);

  bool complete() const { return total_ != 0 && received_ == total_; }
  uint64_t bytes_received() const { return received_; }
  // Requires: complete.
  std::shared_ptr<const expert_weights> finish() { return std::move(weights_); }

 private:
  result<void> begin(const piece_head& head);

  const model_config& config_;
  const kernels::compute& math_;
  const uint32_t layer_;
  const uint32_t expert_;
  const uint32_t number_;
  std::shared_ptr<expert_weights> weights_;
  piece_head head_;
  uint64_t received_ = 0;
  uint64_t total_ = 0;  // 0 before the first piece
};

}  // namespace troupe
