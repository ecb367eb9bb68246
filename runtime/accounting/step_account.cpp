#include "runtime/accounting/step_account.hpp"

#include <algorithm>
#include <mutex>
#include <numeric>

#include "runtime/accounting/timeline.hpp"

namespace troupe {

namespace {

uint64_t overlap(uint64_t a_begin, uint64_t a_end, uint64_t b_begin, uint64_t b_end) {
  const uint64_t begin = std::max(a_begin, b_begin);
  const uint64_t end = std::min(a_end, b_end);
  return end > begin ? end - begin : 0;
}

}  // namespace

std::array<uint64_t, layer_account::word_count> layer_account::words() const {
  std::array<uint64_t, word_count> out{};
  auto* at = std::copy(compute_ns.begin(), compute_ns.end(), out.begin());
  at = std::copy(stages.begin(), stages.end(), at);
  for (const uint64_t value :
       {rows, expert_rows, weight_passes, messages, wire_bytes, wire_ns, exposed_ns, bubble_ns, mailbox_ns, idle_ns})
    *at++ = value;
  return out;
}

layer_account layer_account::from_words(std::span<const uint64_t, word_count> words) {
  layer_account out;
  const auto* at = words.data();
  for (auto* list : {&out.compute_ns, &out.stages})
    for (auto& value : *list) value = *at++;
  for (auto* value : {&out.rows, &out.expert_rows, &out.weight_passes, &out.messages, &out.wire_bytes, &out.wire_ns,
                      &out.exposed_ns, &out.bubble_ns, &out.mailbox_ns, &out.idle_ns})
    *value = *at++;
  return out;
}

void layer_account::add(const layer_account& other) {
  auto sum = words();
  const auto more = other.words();
  for (size_t i = 0; i < word_count; ++i) sum[i] += more[i];
  *this = from_words(sum);
}

uint64_t layer_account::busy_ns() const { return std::accumulate(compute_ns.begin(), compute_ns.end(), uint64_t{0}); }

void step_account::attach(timeline* to) {
  const std::lock_guard lock(lock_);
  timeline_ = to;
}

void step_account::ran(const stage_label& what, const stage_time& when) {
  const std::lock_guard lock(lock_);
  auto& sums = layer(what.layer);
  sums.compute_ns[index_of(what.kind)] += when.duration_ns();
  ++sums.stages[index_of(what.kind)];
  if (what.kind == stage_kind::mlp) {
    sums.expert_rows += what.rows;
    sums.weight_passes += what.weight_passes;
  } else if (what.kind == stage_kind::attn || what.kind == stage_kind::attn_0) {
    sums.rows += what.rows;
  }
  if (last_end_ns_ != 0 && when.begin_ns > last_end_ns_) {
    const uint64_t idle = when.begin_ns - last_end_ns_;
    const uint64_t ready = std::min(what.ready_ns, when.begin_ns);
    const uint64_t mailbox = overlap(last_end_ns_, when.begin_ns, ready, when.begin_ns);
    const uint64_t exposed = overlap(last_end_ns_, when.begin_ns, std::min(what.sent_ns, ready), ready);
    sums.mailbox_ns += mailbox;
    sums.exposed_ns += exposed;
    (what.opens_step ? sums.idle_ns : sums.bubble_ns) += idle - mailbox - exposed;
    if (timeline_ != nullptr) timeline_->waited(what, last_end_ns_, when.begin_ns, exposed, mailbox);
  }
  last_end_ns_ = when.end_ns;
  if (timeline_ != nullptr) timeline_->ran(what, when);
}

void step_account::delivered(const micro_batch& message, uint16_t node) {
  const auto& header = message.header;
  const std::lock_guard lock(lock_);
  auto& sums = layer(header.layer);
  ++sums.messages;
  sums.wire_bytes += header.payload_bytes + sizeof header;
  if (message.delivered_ns > header.send_time_ns) sums.wire_ns += message.delivered_ns - header.send_time_ns;
  if (timeline_ != nullptr) timeline_->delivered(message, node);
}

std::vector<layer_account> step_account::layers() const {
  const std::lock_guard lock(lock_);
  return layers_;
}

layer_account step_account::total() const {
  layer_account sum;
  const std::lock_guard lock(lock_);
  for (const auto& one : layers_) sum.add(one);
  return sum;
}

layer_account& step_account::layer(uint32_t index) {
  // A peer's layer number is checked by its addressee only after it was recorded here.
  constexpr uint32_t layers_max = 1024;
  index = std::min(index, layers_max - 1);
  if (layers_.size() <= index) layers_.resize(size_t{index} + 1);
  return layers_[index];
}

}  // namespace troupe
