#include "runtime/serving/expert_transfer.hpp"

#include <algorithm>
#include <cstring>

namespace troupe {

namespace {

uint64_t layout_of(const kernels::compute& math) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : math.description()) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

piece_head head_of(const expert_weights& weights, const kernels::compute& math) {
  const auto describe = [](const kernels::packed_matrix& packed) {
    return piece_head::matrix{static_cast<uint32_t>(packed.n()), static_cast<uint32_t>(packed.k()),
                              static_cast<uint32_t>(packed.format()), packed.parts().storage, packed.bytes()};
  };
  return {layout_of(math), {describe(weights.gate), describe(weights.up), describe(weights.down)}};
}

// Calls `visit(matrix, offset in it, offset in the range, bytes)` for each matrix that [begin, end) of the
// matrices' bytes, one after the other, touches.
template <class Weights, class Visit>
void each_part(Weights& weights, uint64_t begin, uint64_t end, Visit&& visit) {
  uint64_t base = 0;
  for (auto* packed : {&weights.gate, &weights.up, &weights.down}) {
    const uint64_t from = std::max(begin, base);
    const uint64_t to = std::min(end, base + packed->bytes());
    if (from < to) visit(*packed, from - base, from - begin, to - from);
    base += packed->bytes();
  }
}

error malformed(const char* what) {
  return {errc::malformed, std::string("an expert's weights from a peer were refused: ") + what};
}

}  // namespace

std::optional<micro_batch> answer_request(const micro_batch_header& request, const expert_weights* weights,
                                          const kernels::compute& math, buffer_pool& pool) {
  micro_batch answer;
  auto& header = answer.header;
  header.kind = message_kind::bulk;
  header.bulk_kind = static_cast<uint32_t>(bulk_kind::expert_piece);
  header.layer = request.layer;
  header.row_count = request.row_count;
  header.dispatch_id = request.dispatch_id;
  header.step = request.step;
  header.status = combine_status::unknown_expert;
  if (weights == nullptr || request.step >= weights->bytes()) return answer;
  const uint64_t bytes = std::min(piece_bytes_max, weights->bytes() - request.step);
  answer.payload = pool.acquire(sizeof(piece_head) + bytes);
  if (!answer.payload) return std::nullopt;
  header.status = combine_status::ok;
  header.payload_bytes = sizeof(piece_head) + bytes;
  const piece_head head = head_of(*weights, math);
  std::byte* const out = answer.payload->data;
  std::memcpy(out, &head, sizeof head);
  each_part(*weights, request.step, request.step + bytes,
            [&](const kernels::packed_matrix& packed, uint64_t at, uint64_t to, uint64_t count) {
              std::memcpy(out + sizeof head + to, packed.data() + at, count);
            });
  seal(answer, true);
  return answer;
}

expert_arrival::expert_arrival(const model_config& config, const kernels::compute& math, uint32_t layer,
                               uint32_t expert, uint32_t number)
    : config_(config), math_(math), layer_(layer), expert_(expert), number_(number) {}

micro_batch expert_arrival::request() const {
  micro_batch message;
  auto& header = message.header;
  header.kind = message_kind::bulk;
  header.bulk_kind = static_cast<uint32_t>(bulk_kind::expert_request);
  header.layer = layer_;
  header.row_count = expert_;
  header.dispatch_id = number_;
  header.step = received_;
  return message;
}

result<void> expert_arrival::begin(const piece_head& head) {
  if (head.layout != layout_of(math_))
    return error{errc::unsupported, "the peer's CPU keeps weights in another layout than this one's"};
  const auto width = static_cast<uint32_t>(config_.moe_intermediate_size);
  const auto hidden = static_cast<uint32_t>(config_.hidden_size);
  const auto format = static_cast<uint32_t>(math_.preferred_format());
  for (size_t i = 0; i < head.matrices.size(); ++i) {
    const auto& matrix = head.matrices[i];
    const bool down = i == 2;
    if (matrix.n != (down ? hidden : width) || matrix.k != (down ? width : hidden))
      return malformed("their shape is not the model's");
    if (matrix.format != format) return malformed("their format is not this numeric profile's");
  }
  auto weights = std::make_shared<expert_weights>();
  kernels::packed_matrix* const rooms[] = {&weights->gate, &weights->up, &weights->down};
  for (size_t i = 0; i < head.matrices.size(); ++i) {
    const auto& matrix = head.matrices[i];
    *rooms[i] = math_.pack_room(math_.preferred_format(), matrix.storage, static_cast<int>(matrix.n),
                                static_cast<int>(matrix.k));
    if (!*rooms[i]) return malformed("they are stored in a way that this numeric profile does not know");
    if (rooms[i]->bytes() != matrix.bytes) return malformed("their size does not fit their shape");
  }
  weights_ = std::move(weights);
  head_ = head;
  total_ = weights_->bytes();
  return {};
}

result<bool> expert_arrival::take(const micro_batch& piece) {
  const auto& header = piece.header;
  if (header.dispatch_id != number_ || header.layer != layer_ || header.row_count != expert_ ||
      header.step != received_ || complete())
    return false;
  if (header.status != combine_status::ok)
    return error{errc::unavailable, "the peer does not hold the expert any more"};
  if (!piece.payload || piece.payload->size <= sizeof(piece_head)) return malformed("a piece is empty");
  piece_head head;
  std::memcpy(&head, piece.payload->data, sizeof head);
  if (total_ == 0) {
    if (auto begun = begin(head); !begun) return begun.failure();
  } else if (head != head_) {
    return malformed("two pieces describe different matrices");
  }
  const uint64_t bytes = piece.payload->size - sizeof head;
  if (bytes > piece_bytes_max || bytes > total_ - received_) return malformed("a piece is too long");
  const std::byte* const in = piece.payload->data + sizeof head;
  each_part(*weights_, received_, received_ + bytes,
            [&](kernels::packed_matrix& packed, uint64_t at, uint64_t from, uint64_t count) {
              std::memcpy(packed.mutable_data() + at, in + from, count);
            });
  received_ += bytes;
  return true;
}

}  // namespace troupe
