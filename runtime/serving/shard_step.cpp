#include "runtime/serving/shard_step.hpp"

#include <algorithm>
#include <cstring>

#include "runtime/error.hpp"

namespace troupe {

shard_step::shard_step(const forward_pass& forward, kv_cache& cache, int rows_max, std::function<void()> completed)
    : forward_(forward),
      cache_(cache),
      completed_(std::move(completed)),
      workspace_(forward.config(), rows_max),
      zeros_(static_cast<size_t>(forward.config().hidden_size) * sizeof(float)) {
  rows_.reserve(static_cast<size_t>(rows_max));
  sampling_rows_.reserve(static_cast<size_t>(rows_max));
  sampled_.resize(static_cast<size_t>(rows_max));
}

void shard_step::begin(uint64_t number) {
  number_ = number;
  layer_ = -1;
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

void shard_step::copy_activation(uint16_t row, wire_dtype dtype, std::byte* out) const {
  const auto hidden = static_cast<size_t>(forward_.config().hidden_size);
  const float* source = workspace_.normed.data() + row * hidden;
  if (dtype == wire_dtype::bf16)
    kernels::bf16_round_row(source, reinterpret_cast<uint16_t*>(out), static_cast<int>(hidden));
  else
    std::memcpy(out, source, hidden * sizeof(float));
}

void shard_step::run_attend(worker_team& team) {
  const auto& config = forward_.config();
  if (layer_ < 0)
    forward_.begin(workspace_, team);
  else
    forward_.combine(workspace_, team);
  for (int layer = layer_ + 1; layer < config.num_hidden_layers; ++layer) {
    forward_.attention_inputs(workspace_, cache_, layer, team);
    forward_.attention_core(workspace_, cache_, layer, team);
    if (config.is_moe(layer)) {
      layer_ = layer;
      return;
    }
    forward_.dense_mlp(workspace_, layer, team);
  }
  layer_ = config.num_hidden_layers;
  if (!sampling_rows_.empty()) sample(team);
}

void shard_step::sample(worker_team& team) {
  forward_.head(workspace_, sampling_rows_, team);
  const int vocab = forward_.config().vocab_size;
  team.parallel(static_cast<int>(sampling_rows_.size()), [&](int i, worker_memory& memory) {
    const auto& owner = *rows_[static_cast<size_t>(sampling_rows_[static_cast<size_t>(i)])].owner;
    const kernels::sampling_parameters parameters{.temperature = owner.temperature, .top_p = owner.top_p, .top_k = 0};
    sampled_[static_cast<size_t>(i)] =
        kernels::sample(forward_.math(), workspace_.logits.data() + static_cast<size_t>(i) * static_cast<size_t>(vocab),
                        vocab, parameters, owner.seed, 0, owner.completion_tokens(), memory.kernel);
  });
}

task_cost shard_step::attend_cost() const {
  task_cost cost;
  const auto& config = forward_.config();
  const double rows = static_cast<double>(rows_.size());
  for (int layer = layer_ + 1; layer < config.num_hidden_layers; ++layer) {
    const double bytes = forward_.layer_bytes(layer);
    cost.bytes += bytes;
    cost.flops += bytes * rows + forward_.attention_flops(workspace_);
    if (config.is_moe(layer)) return cost;
  }
  const double head = static_cast<double>(config.vocab_size) * config.hidden_size;
  cost.bytes += 2 * head;
  cost.flops += 2 * head * static_cast<double>(sampling_rows_.size());
  return cost;
}

task_cost shard_step::shared_cost() const {
  const auto& config = forward_.config();
  const double elements = 3.0 * config.shared_intermediate_size() * config.hidden_size;
  return {.flops = 2 * elements * static_cast<double>(rows_.size()), .bytes = 2 * elements};
}

}  // namespace troupe
