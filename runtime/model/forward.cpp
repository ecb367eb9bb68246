#include "runtime/model/forward.hpp"

#include <algorithm>
#include <cstring>

#include "runtime/error.hpp"

namespace troupe {

namespace {

size_t product(int a, int b) { return static_cast<size_t>(a) * static_cast<size_t>(b); }

// Columns that one item of a split product computes: a multiple of a tile's 16, enough to be worth a
// hand-over, few enough that two threads share the smallest projections.
constexpr int columns_per_item = 64;

int widest_mlp(const model_config& config) {
  return std::max(config.first_k_dense_replace > 0 || config.n_routed_experts == 0 ? config.intermediate_size : 0,
                  config.shared_intermediate_size());
}

}  // namespace

micro_batch_rows::micro_batch_rows(const model_config& config, int rows_max) : rows_max_(rows_max) {
  const int h = config.num_attention_heads;
  const int width = config.kv_lora_rank + config.qk_rope_head_dim;
  const auto rows = [&](int columns) { return product(rows_max, columns); };
  inputs.reserve(static_cast<size_t>(rows_max));
  routes.resize(rows(config.num_experts_per_tok));
  expert_outputs.resize(rows(config.num_experts_per_tok));
  x.resize(rows(config.hidden_size));
  normed.resize(rows(config.hidden_size));
  shared.resize(rows(config.hidden_size));
  latent_q.resize(rows(config.q_lora_rank));
  q.resize(rows(h * config.dq()));
  kv.resize(rows(width));
  q_absorbed.resize(rows(h * width));
  attended.resize(rows(h * config.kv_lora_rank));
  heads_out.resize(rows(h * config.v_head_dim));
  cosines.resize(rows(config.qk_rope_head_dim / 2));
  sines.resize(rows(config.qk_rope_head_dim / 2));
  router.resize(rows(config.n_routed_experts));
  mlp_gate.resize(rows(widest_mlp(config)));
  mlp_up.resize(rows(widest_mlp(config)));
}

forward_pass::forward_pass(const model_config& config, const shard_weights& weights, const kernels::compute& math,
                           bool bf16_outputs)
    : config_(config),
      weights_(weights),
      math_(math),
      bf16_outputs_(bf16_outputs),
      rounds_norms_(math.numeric_profile() == kernels::profile::amx_bf16),
      frequencies_(kernels::inverse_frequencies(config.rope)),
      rope_scale_(kernels::rope_cos_sin_scale(config.rope)),
      softmax_scale_(config.softmax_scale()) {}

void forward_pass::project(const kernels::packed_matrix& weight, const float* x, int64_t ldx, float* y, int64_t ldy,
                           int m, worker_team& team) const {
  const int n = weight.n();
  const int columns = team.size() == 1 ? n : columns_per_item;
  team.parallel((n + columns - 1) / columns, [&](int i, worker_memory& memory) {
    math_.matmul(weight, x, ldx, y, ldy, m, i * columns, std::min(n, (i + 1) * columns), memory.kernel);
  });
}

void forward_pass::norm_rows(const float* x, int64_t ldx, const std::vector<float>& weight, float* out, int64_t ldo,
                             int m, worker_team& team) const {
  const int width = static_cast<int>(weight.size());
  team.parallel(m, [&](int i, worker_memory&) {
    float* row = out + i * ldo;
    math_.rms_norm(x + i * ldx, weight.data(), row, width, config_.rms_norm_eps);
    if (rounds_norms_)
      for (int j = 0; j < width; ++j) row[j] = kernels::bf16_widen(kernels::bf16_round(row[j]));
  });
}

void forward_pass::begin(micro_batch_rows& batch, worker_team& team) const {
  const int d = config_.hidden_size;
  const int half = config_.qk_rope_head_dim / 2;
  team.parallel(batch.count(), [&](int i, worker_memory&) {
    const auto& row = batch.inputs[static_cast<size_t>(i)];
    weights_.embed(row.token, d, batch.x.data() + product(i, d));
    kernels::rope_table(frequencies_, row.position, rope_scale_, batch.cosines.data() + product(i, half),
                        batch.sines.data() + product(i, half));
  });
}

void forward_pass::attention_inputs(micro_batch_rows& batch, kv_cache& cache, int layer, worker_team& team) const {
  const auto& weights = weights_.layers[static_cast<size_t>(layer)].attention;
  const int m = batch.count();
  const int d = config_.hidden_size;
  const int rk = config_.kv_lora_rank;
  const int dr = config_.qk_rope_head_dim;
  const int dq = config_.dq();
  const int q_width = config_.num_attention_heads * dq;
  norm_rows(batch.x.data(), d, weights.input_norm, batch.normed.data(), d, m, team);
  if (weights.q_a) {
    const int rq = config_.q_lora_rank;
    project(weights.q_a, batch.normed.data(), d, batch.latent_q.data(), rq, m, team);
    norm_rows(batch.latent_q.data(), rq, weights.q_a_norm, batch.latent_q.data(), rq, m, team);
    project(weights.q_b, batch.latent_q.data(), rq, batch.q.data(), q_width, m, team);
  } else {
    project(weights.q_b, batch.normed.data(), d, batch.q.data(), q_width, m, team);
  }
  project(weights.kv_a, batch.normed.data(), d, batch.kv.data(), rk + dr, m, team);
  norm_rows(batch.kv.data(), rk + dr, weights.kv_a_norm, batch.kv.data(), rk + dr, m, team);
  team.parallel(m, [&](int i, worker_memory&) {
    const float* cosines = batch.cosines.data() + product(i, dr / 2);
    const float* sines = batch.sines.data() + product(i, dr / 2);
    float* q = batch.q.data() + product(i, q_width);
    for (int j = 0; j < config_.num_attention_heads; ++j)
      kernels::rope_rotate(q + j * dq + config_.qk_nope_head_dim, cosines, sines, dr);
    float* kv = batch.kv.data() + product(i, rk + dr);
    kernels::rope_rotate(kv + rk, cosines, sines, dr);
    const auto& row = batch.inputs[static_cast<size_t>(i)];
    const int tokens = kernels::kv_layout::tokens;
    const int32_t block = (*row.blocks)[static_cast<size_t>(row.position / tokens)];
    math_.kv_write(cache.layout(), cache.address(block, layer), row.position % tokens, kv, kv + rk);
  });
}

// q_absorbed[i, j] = [UK_j^T q_nope[i, j] ; q_rope[i, j]].
void forward_pass::absorb_queries(micro_batch_rows& batch, int layer, worker_team& team) const {
  const auto& weights = weights_.layers[static_cast<size_t>(layer)].attention;
  const int m = batch.count();
  const int h = config_.num_attention_heads;
  const int rk = config_.kv_lora_rank;
  const int dr = config_.qk_rope_head_dim;
  const int dq = config_.dq();
  const int width = rk + dr;
  team.parallel(h, [&](int j, worker_memory& memory) {
    math_.matmul(weights.uk[static_cast<size_t>(j)], batch.q.data() + j * dq, h * dq,
                 batch.q_absorbed.data() + j * width, h * width, m, 0, rk, memory.kernel);
    for (int i = 0; i < m; ++i)
      std::memcpy(batch.q_absorbed.data() + product(i, h * width) + j * width + rk,
                  batch.q.data() + product(i, h * dq) + j * dq + config_.qk_nope_head_dim,
                  static_cast<size_t>(dr) * sizeof(float));
  });
}

void forward_pass::attention_core(micro_batch_rows& batch, kv_cache& cache, int layer, worker_team& team) const {
  const auto& weights = weights_.layers[static_cast<size_t>(layer)];
  const int m = batch.count();
  const int d = config_.hidden_size;
  const int h = config_.num_attention_heads;
  const int rk = config_.kv_lora_rank;
  const int width = rk + config_.qk_rope_head_dim;
  const int dv = config_.v_head_dim;
  absorb_queries(batch, layer, team);
  const kernels::mla_shape shape{.heads = h, .rk = rk, .dr = config_.qk_rope_head_dim, .scale = softmax_scale_};
  // With few rows a row's heads are split between the threads.
  const int splits = m >= 2 * team.size() ? 1 : std::min(team.size(), h);
  team.parallel(m * splits, [&](int item, worker_memory& memory) {
    const int i = item / splits;
    const int split = item % splits;
    const auto& row = batch.inputs[static_cast<size_t>(i)];
    const size_t count = static_cast<size_t>(cache.blocks_for(row.position + 1));
    auto* blocks = reinterpret_cast<const std::byte**>(memory.workspace.take(count * sizeof(std::byte*)));
    for (size_t b = 0; b < count; ++b) blocks[b] = cache.address((*row.blocks)[b], layer);
    math_.mla_core(shape, cache.layout(), batch.q_absorbed.data() + product(i, h * width), {blocks, count},
                   row.position + 1, h * split / splits, h * (split + 1) / splits,
                   batch.attended.data() + product(i, h * rk), memory.kernel);
  });
  team.parallel(h, [&](int j, worker_memory& memory) {
    math_.matmul(weights.attention.uv[static_cast<size_t>(j)], batch.attended.data() + j * rk, h * rk,
                 batch.heads_out.data() + j * dv, h * dv, m, 0, dv, memory.kernel);
  });
  project(weights.attention.o, batch.heads_out.data(), h * dv, batch.normed.data(), d, m, team);
  team.parallel(m, [&](int i, worker_memory&) {
    math_.axpy(1.0F, batch.normed.data() + product(i, d), batch.x.data() + product(i, d), d);
  });
  norm_rows(batch.x.data(), d, weights.attention.post_norm, batch.normed.data(), d, m, team);
  if (!config_.is_moe(layer)) return;
  const int experts = config_.n_routed_experts;
  project(weights.router, batch.normed.data(), d, batch.router.data(), experts, m, team);
  const auto parameters = config_.router();
  const float* bias = weights.router_bias.empty() ? nullptr : weights.router_bias.data();
  team.parallel(m, [&](int i, worker_memory&) {
    kernels::route(parameters, batch.router.data() + product(i, experts), bias,
                   batch.routes.data() + product(i, parameters.top_k));
  });
}

void forward_pass::mlp(const mlp_weights& weights, micro_batch_rows& batch, float* out, worker_team& team) const {
  const int m = batch.count();
  const int d = config_.hidden_size;
  const int width = weights.gate.n();
  project(weights.gate, batch.normed.data(), d, batch.mlp_gate.data(), width, m, team);
  project(weights.up, batch.normed.data(), d, batch.mlp_up.data(), width, m, team);
  team.parallel(m, [&](int i, worker_memory&) {
    float* gate = batch.mlp_gate.data() + product(i, width);
    math_.silu_mul(gate, batch.mlp_up.data() + product(i, width), gate, width);
  });
  project(weights.down, batch.mlp_gate.data(), width, out, d, m, team);
}

void forward_pass::dense_mlp(micro_batch_rows& batch, int layer, worker_team& team) const {
  const int d = config_.hidden_size;
  mlp(weights_.layers[static_cast<size_t>(layer)].dense, batch, batch.shared.data(), team);
  team.parallel(batch.count(), [&](int i, worker_memory&) {
    math_.axpy(1.0F, batch.shared.data() + product(i, d), batch.x.data() + product(i, d), d);
  });
}

void forward_pass::shared_expert(micro_batch_rows& batch, int layer, worker_team& team) const {
  const auto& weights = weights_.layers[static_cast<size_t>(layer)].shared;
  if (weights.gate)
    mlp(weights, batch, batch.shared.data(), team);
  else
    std::fill_n(batch.shared.begin(), product(batch.count(), config_.hidden_size), 0.0F);
}

void forward_pass::combine(micro_batch_rows& batch, worker_team& team) const {
  const int d = config_.hidden_size;
  const int k = config_.num_experts_per_tok;
  team.parallel(batch.count(), [&](int i, worker_memory& memory) {
    auto* sum = reinterpret_cast<float*>(memory.workspace.take(static_cast<size_t>(d) * 2 * sizeof(float)));
    float* widened = sum + d;
    std::fill_n(sum, d, 0.0F);
    for (int slot = 0; slot < k; ++slot) {
      const size_t at = product(i, k) + static_cast<size_t>(slot);
      TROUPE_CHECK(batch.expert_outputs[at] != nullptr, "a combine began before every expert had answered");
      if (bf16_outputs_)
        kernels::bf16_widen_row(reinterpret_cast<const uint16_t*>(batch.expert_outputs[at]), widened, d);
      else
        std::memcpy(widened, batch.expert_outputs[at], static_cast<size_t>(d) * sizeof(float));
      math_.axpy(batch.routes[at].gate, widened, sum, d);
    }
    math_.axpy(1.0F, batch.shared.data() + product(i, d), sum, d);
    math_.axpy(1.0F, sum, batch.x.data() + product(i, d), d);
  });
}

void forward_pass::head(micro_batch_rows& batch, std::span<const int32_t> sampling_rows, worker_team& team) const {
  const int d = config_.hidden_size;
  const int m = static_cast<int>(sampling_rows.size());
  // The sampled rows are gathered at the front of `normed`, which no later stage of this step reads.
  for (int i = 0; i < m; ++i)
    std::memmove(batch.normed.data() + product(i, d),
                 batch.x.data() + product(sampling_rows[static_cast<size_t>(i)], d),
                 static_cast<size_t>(d) * sizeof(float));
  norm_rows(batch.normed.data(), d, weights_.final_norm, batch.normed.data(), d, m, team);
  const size_t needed = product(m, config_.vocab_size);
  if (batch.logits.size() < needed) batch.logits.resize(needed);
  project(weights_.head, batch.normed.data(), d, batch.logits.data(), config_.vocab_size, m, team);
}

double forward_pass::attention_flops(const micro_batch_rows& batch) const {
  const double width = 2.0 * config_.kv_lora_rank + config_.qk_rope_head_dim;
  double flops = 0;
  for (const auto& row : batch.inputs) flops += 2.0 * config_.num_attention_heads * width * (row.position + 1);
  return flops;
}

double forward_pass::layer_bytes(int layer) const {
  const auto& weights = weights_.layers[static_cast<size_t>(layer)];
  const auto& a = weights.attention;
  double bytes = static_cast<double>(a.q_a.bytes() + a.q_b.bytes() + a.kv_a.bytes() + a.o.bytes());
  for (const auto& matrix : a.uk) bytes += static_cast<double>(matrix.bytes());
  for (const auto& matrix : a.uv) bytes += static_cast<double>(matrix.bytes());
  return bytes + static_cast<double>(weights.dense.bytes() + weights.router.bytes());
}

}  // namespace troupe
