// The forward pass alone, without actors: what a cluster's routing and logits are compared with.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/model/forward.hpp"

namespace troupe::testing {

// Computes the experts in place: what shard and hosts do together, without messages.
class plain_forward {
 public:
  plain_forward(const std::filesystem::path& directory, std::unique_ptr<kernels::compute> math, int threads = 1)
      : math_(std::move(math)),
        config_(*load_model_config(directory)),
        files_(*checkpoint::open(directory)),
        shard_(*load_shard_weights(files_, config_, *math_, run_inline())),
        pass_(config_, *shard_, *math_, false),
        cache_(math_->layout_kv(config_.kv_lora_rank, config_.qk_rope_head_dim), config_.num_hidden_layers, 16),
        team_(threads) {
    cache_.allocate(8, blocks_);
  }

  // Called at each MoE layer's gate with the rows that stand there.
  std::function<void(int layer, const micro_batch_rows& rows)> at_gate;

  // Logits of every given position.
  std::vector<float> run(const std::vector<int32_t>& tokens, int first_position) {
    const int m = static_cast<int>(tokens.size());
    micro_batch_rows rows(config_, *math_, m);
    std::vector<int32_t> all;
    for (int i = 0; i < m; ++i) {
      rows.inputs.push_back({tokens[static_cast<size_t>(i)], first_position + i, &blocks_});
      all.push_back(i);
    }
    pass_.begin(rows, team_);
    for (int layer = 0; layer < config_.num_hidden_layers; ++layer) {
      pass_.attention_inputs(rows, cache_, layer, team_);
      pass_.attention_core(rows, cache_, layer, team_);
      if (!config_.is_moe(layer)) {
        pass_.dense_mlp(rows, layer, team_);
        continue;
      }
      if (at_gate) at_gate(layer, rows);
      const auto outputs = experts(rows, layer);
      pass_.shared_expert(rows, layer, team_);
      pass_.combine(rows, team_);
    }
    pass_.head(rows, all, team_);
    return {rows.logits.begin(), rows.logits.begin() + m * config_.vocab_size};
  }

  const model_config& config() const { return config_; }

 private:
  std::vector<std::vector<float>> experts(micro_batch_rows& rows, int layer) {
    const int d = config_.hidden_size;
    const int k = config_.num_experts_per_tok;
    std::vector<std::vector<float>> outputs(static_cast<size_t>(rows.count() * k));
    for (int i = 0; i < rows.count() * k; ++i) {
      const auto weights =
          *load_expert_weights(files_, config_, *math_, layer, rows.routes[static_cast<size_t>(i)].expert);
      const int width = weights->gate.n();
      std::vector<float> gate(static_cast<size_t>(width)), up(static_cast<size_t>(width));
      auto& y = outputs[static_cast<size_t>(i)];
      y.resize(static_cast<size_t>(d));
      const float* x = rows.normed.data() + i / k * d;
      math_->matmul(weights->gate, x, d, gate.data(), width, 1, 0, width, scratch_);
      math_->matmul(weights->up, x, d, up.data(), width, 1, 0, width, scratch_);
      math_->silu_mul(gate.data(), up.data(), gate.data(), width);
      math_->matmul(weights->down, gate.data(), width, y.data(), d, 1, 0, d, scratch_);
      rows.expert_outputs[static_cast<size_t>(i)] = reinterpret_cast<const std::byte*>(y.data());
    }
    outputs_ = std::move(outputs);
    return outputs_;
  }

  std::unique_ptr<kernels::compute> math_;
  model_config config_;
  checkpoint files_;
  std::shared_ptr<const shard_weights> shard_;
  forward_pass pass_;
  kv_cache cache_;
  std::vector<int32_t> blocks_;
  worker_team team_;
  kernels::scratch scratch_;
  std::vector<std::vector<float>> outputs_;
};

}  // namespace troupe::testing
