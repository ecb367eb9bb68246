#include "runtime/serving/shard_step.hpp"

#include <algorithm>
#include <cstring>

#include "runtime/error.hpp"

namespace troupe {

shard_step::shard_step(const forward_pass& forward, kv_cache& cache, int rows_max, uint16_t slot, uint32_t index,
                       std::shared_ptr<device> compute, std::function<void(stage_kind)> completed)
    : forward_(forward),
      cache_(cache),
      slot_(slot),
      index_(index),
      compute_(std::move(compute)),
      completed_(std::move(completed)),
      workspace_(forward.config(), forward.math(), rows_max),
      zeros_(static_cast<size_t>(forward.config().hidden_size) * sizeof(float)) {
  rows_.reserve(static_cast<size_t>(rows_max));
  sampling_rows_.reserve(static_cast<size_t>(rows_max));
  sampled_.resize(static_cast<size_t>(rows_max));
}

void shard_step::begin(uint64_t number, bool split_attention, bool alone, uint64_t ready_ns) {
  number_ = number;
  split_attention_ = split_attention;
  alone_ = alone;
  place_ = place::start;
  layer_ = written_layer_ = -1;
  cause_sent_ns_ = cause_ready_ns_ = ready_ns;
  workspace_.inputs.clear();
  sampling_rows_.clear();
  for (const auto& row : rows_) {
    if (row.samples) sampling_rows_.push_back(static_cast<int32_t>(workspace_.inputs.size()));
    workspace_.inputs.push_back({row.token, row.position, &row.owner->blocks});
  }
}

void shard_step::end() {
  rows_.clear();
  answers_.clear();
}

void shard_step::open_layer() {
  answers_.clear();
  missing_ = rows_.size() * static_cast<size_t>(forward_.config().num_experts_per_tok);
  std::fill_n(workspace_.expert_outputs.begin(), missing_, nullptr);
  shared_ready_ = false;
  layer_path_ns_ = 0;
}

void shard_step::shared_done() {
  shared_ready_ = true;
  layer_path_ns_ = std::max(layer_path_ns_, shared_ran_.duration_ns());
  if (shared_ran_.end_ns > cause_ready_ns_) cause_sent_ns_ = cause_ready_ns_ = shared_ran_.end_ns;
}

void shard_step::answered_at(uint64_t sent_ns, uint64_t delivered_ns, uint64_t path_ns) {
  layer_path_ns_ = std::max(layer_path_ns_, path_ns);
  if (delivered_ns <= cause_ready_ns_) return;
  cause_sent_ns_ = sent_ns;
  cause_ready_ns_ = delivered_ns;
}

// Device's thread; the actor reads what is written here after the message that `completed_` sends.
// Nothing else touches the step until the actor has that message, or while a stage is submitted from here.
void shard_step::attention_ended(const stage_time& when) {
  attention_ran_ = when;
  lengthen_chain(when.duration_ns());
  cause_sent_ns_ = cause_ready_ns_ = when.end_ns;
  if (goes_on_itself()) {
    compute_->submit(attention_);
    return;
  }
  const bool gate = at_gate();
  completed_(stage_kind::attn);
  if (gate) compute_->submit(shared_);
}

void shard_step::shared_ended(const stage_time& when) {
  shared_ran_ = when;
  completed_(stage_kind::shared);
}

stage_kind shard_step::attention_kind() const {
  if (place_ != place::halfway && layer_ + 1 >= forward_.config().num_hidden_layers) return stage_kind::head;
  if (!split_attention_) return stage_kind::attn;
  return place_ == place::halfway ? stage_kind::attn_1 : stage_kind::attn_0;
}

stage_label shard_step::label_of(stage_kind kind) const {
  stage_label label;
  label.kind = kind;
  label.slot = slot_;
  label.micro_batch = index_;
  const bool next_layer = kind == stage_kind::attn || kind == stage_kind::attn_0;
  label.layer = static_cast<uint32_t>(std::max(0, next_layer ? layer_ + 1 : layer_));
  label.step = number_;
  label.rows = static_cast<uint32_t>(kind == stage_kind::head ? sampling_rows_.size() : rows_.size());
  label.opens_step = place_ == place::start;
  // The shared expert may run while answers arrive; its own cause does not change.
  label.sent_ns = kind == stage_kind::shared ? attention_ran_.end_ns : cause_sent_ns_;
  label.ready_ns = kind == stage_kind::shared ? attention_ran_.end_ns : cause_ready_ns_;
  return label;
}

std::optional<int> shard_step::reads_layer() const {
  const auto& config = forward_.config();
  switch (attention_kind()) {
    case stage_kind::attn: {
      int layer = layer_ + 1;  // whole attention goes through dense layers up to a gate
      while (layer + 1 < config.num_hidden_layers && !config.is_moe(layer)) ++layer;
      return layer;
    }
    case stage_kind::attn_1: return layer_;
    default: return std::nullopt;
  }
}

void shard_step::unanswered(std::vector<owed_pair>& pairs) const {
  const int k = forward_.config().num_experts_per_tok;
  for (size_t row = 0; row < rows_.size(); ++row)
    for (int slot = 0; slot < k; ++slot) {
      const size_t at = row * static_cast<size_t>(k) + static_cast<size_t>(slot);
      if (workspace_.expert_outputs[at] != nullptr) continue;
      pairs.push_back({static_cast<uint16_t>(row), static_cast<uint16_t>(slot),
                       static_cast<uint16_t>(workspace_.routes[at].expert)});
    }
}

bool shard_step::accept(const owed_pair& pair, const std::byte* output) {
  auto& held = workspace_.expert_outputs[index(pair)];
  if (held != nullptr) return false;
  held = output;
  TROUPE_CHECK(missing_ > 0, "more expert outputs arrived than were owed");
  --missing_;
  return true;
}

void shard_step::give_up(const owed_pair& pair) { accept(pair, zeros_.data()); }

void shard_step::copy_activation(uint16_t row, wire_dtype dtype, std::byte* out, std::byte* scales) const {
  const auto hidden = static_cast<size_t>(forward_.config().hidden_size);
  const float* source = workspace_.normed.data() + row * hidden;
  switch (dtype) {
    case wire_dtype::f32: std::memcpy(out, source, hidden * sizeof(float)); return;
    case wire_dtype::bf16:
      kernels::bf16_round_row(source, reinterpret_cast<uint16_t*>(out), static_cast<int>(hidden));
      return;
    case wire_dtype::fp8:
      for (size_t at = 0; at < hidden; at += fp8_tile, scales += sizeof(float)) {
        const int count = static_cast<int>(std::min<size_t>(fp8_tile, hidden - at));
        const float scale = kernels::quantise_tile(source + at, count, reinterpret_cast<uint8_t*>(out) + at);
        std::memcpy(scales, &scale, sizeof scale);
      }
      return;
  }
}

void shard_step::run_attention(worker_team& team) {
  const auto& config = forward_.config();
  if (place_ == place::halfway) {
    run_second_half(team);
    return;
  }
  if (place_ == place::start)
    forward_.begin(workspace_, team);
  else if (place_ == place::gate)
    forward_.combine(workspace_, team);
  while (++layer_ < config.num_hidden_layers) {
    run_first_half(team);
    if (split_attention_) return;
    run_second_half(team);
    if (place_ == place::gate) return;
  }
  place_ = place::through;
  if (!sampling_rows_.empty()) sample(team);
}

void shard_step::run_first_half(worker_team& team) {
  forward_.attention_inputs(workspace_, cache_, layer_, team);
  written_layer_ = layer_;
  place_ = place::halfway;
}

void shard_step::run_second_half(worker_team& team) {
  forward_.attention_core(workspace_, cache_, layer_, team);
  if (forward_.config().is_moe(layer_)) {
    place_ = place::gate;
    return;
  }
  forward_.dense_mlp(workspace_, layer_, team);
  place_ = place::dense_layer_done;
}

void shard_step::sample(worker_team& team) {
  forward_.head(workspace_, sampling_rows_, team);
  const int vocab = forward_.config().vocab_size;
  team.parallel("sampling", static_cast<int>(sampling_rows_.size()), [&](int i, worker_memory& memory) {
    const auto& owner = *rows_[static_cast<size_t>(sampling_rows_[static_cast<size_t>(i)])].owner;
    const kernels::sampling_parameters parameters{.temperature = owner.temperature, .top_p = owner.top_p, .top_k = 0};
    sampled_[static_cast<size_t>(i)] =
        kernels::sample(forward_.math(), workspace_.logits.data() + static_cast<size_t>(i) * static_cast<size_t>(vocab),
                        vocab, parameters, owner.seed, 0, owner.completion_tokens(), memory.kernel);
  });
}

task_cost shard_step::attention_cost() const {
  task_cost cost;
  const auto& config = forward_.config();
  const double rows = static_cast<double>(rows_.size());
  const auto kind = attention_kind();
  if (kind == stage_kind::head) {
    const double head = static_cast<double>(config.vocab_size) * config.hidden_size;
    cost.bytes = 2 * head;
    cost.flops = 2 * head * static_cast<double>(sampling_rows_.size());
    return cost;
  }
  for (int layer = kind == stage_kind::attn_1 ? layer_ : layer_ + 1; layer < config.num_hidden_layers; ++layer) {
    // The halves: projections of queries and keys, then core attention and what follows.
    const double bytes = forward_.layer_bytes(layer) / (kind == stage_kind::attn ? 1 : 2);
    cost.bytes += bytes;
    cost.flops += bytes * rows + (kind == stage_kind::attn_0 ? 0 : forward_.attention_flops(workspace_));
    if (kind != stage_kind::attn || config.is_moe(layer)) break;
  }
  return cost;
}

task_cost shard_step::shared_cost() const {
  const auto& config = forward_.config();
  const double elements = 3.0 * config.shared_intermediate_size() * config.hidden_size;
  return {.flops = 2 * elements * static_cast<double>(rows_.size()), .bytes = 2 * elements};
}

}  // namespace troupe
