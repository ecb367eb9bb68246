// The whole model against the values of MODEL.md 17.2, through the forward pass alone.
#include "runtime/model/forward.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "tests/small_model.hpp"

namespace troupe {
namespace {

// Computes the experts in place: what shard and hosts do together, without messages.
class plain_forward {
 public:
  plain_forward(const std::filesystem::path& directory, std::unique_ptr<kernels::compute> math)
      : math_(std::move(math)),
        config_(*load_model_config(directory)),
        files_(*checkpoint::open(directory)),
        shard_(*load_shard_weights(files_, config_, *math_, run_inline())),
        pass_(config_, *shard_, *math_, false),
        cache_(math_->layout_kv(config_.kv_lora_rank, config_.qk_rope_head_dim), config_.num_hidden_layers, 16) {
    cache_.allocate(8, blocks_);
  }

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
  worker_team team_{1};
  kernels::scratch scratch_;
  std::vector<std::vector<float>> outputs_;
};

int argmax(const float* logits, int count) {
  int best = 0;
  for (int i = 1; i < count; ++i)
    if (logits[i] > logits[best]) best = i;
  return best;
}

const std::vector<int32_t> t1_ids{3, 17, 42, 5, 60, 8, 29, 11};
constexpr double t1_first[8] = {-2.80035757, 1.64591521,  4.73196190,  -3.44017388,
                                0.87141558,  -0.79783374, -4.59811285, -1.23629106};
constexpr double t1_last[8] = {-1.35832258, -0.37031827, 3.16481509,  -0.37176301,
                               -1.99080516, -5.80996015, -1.31010631, -4.28873865};

}  // namespace

TEST_CASE("T1 logits, argmax and greedy continuation equal the published code's in profile f32") {
  testing::temporary_directory directory;
  testing::write_t1_model(directory.path());
  plain_forward model(directory.path(), kernels::compute::make(kernels::profile::f32));
  const auto logits = model.run(t1_ids, 0);
  double sum = 0, sum_abs = 0;
  for (const float z : logits) {
    sum += z;
    sum_abs += std::abs(z);
  }
  for (int i = 0; i < 8; ++i) {
    CHECK(std::abs(logits[static_cast<size_t>(i)] - t1_first[i]) <= 5e-5);
    CHECK(std::abs(logits[static_cast<size_t>(7 * 64 + i)] - t1_last[i]) <= 5e-5);
  }
  CHECK(std::abs(sum - 81.6796) < 1e-2);
  CHECK(std::abs(sum_abs - 1433.366) < 1e-2);
  const int expected[8] = {55, 59, 59, 55, 23, 14, 18, 36};
  for (int i = 0; i < 8; ++i) CHECK(argmax(logits.data() + i * 64, 64) == expected[i]);

  const int greedy[8] = {36, 25, 59, 42, 51, 59, 55, 63};
  auto last = logits;
  int32_t token = argmax(last.data() + 7 * 64, 64);
  for (int i = 0; i < 8; ++i) {
    CHECK(token == greedy[i]);
    last = model.run({token}, 8 + i);
    token = argmax(last.data(), 64);
  }
}

TEST_CASE("T1 in profile amx_bf16 stays within tolerance of f32") {
  if (!kernels::cpu_features::detect().amx_bf16) {
    MESSAGE("skipped: this CPU has no AMX BF16");
    return;
  }
  testing::temporary_directory directory;
  testing::write_t1_model(directory.path());
  plain_forward exact(directory.path(), kernels::compute::make(kernels::profile::f32));
  plain_forward rounded(directory.path(), kernels::compute::make(kernels::profile::amx_bf16));
  const auto a = exact.run(t1_ids, 0);
  const auto b = rounded.run(t1_ids, 0);
  double dot = 0, norm_a = 0, norm_b = 0, difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    dot += double{a[i]} * b[i];
    norm_a += double{a[i]} * a[i];
    norm_b += double{b[i]} * b[i];
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  }
  CHECK(std::sqrt(difference / norm_a) <= 2e-2);
  CHECK(dot / std::sqrt(norm_a * norm_b) >= 0.9995);
}

}  // namespace troupe
