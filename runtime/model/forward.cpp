#include "runtime/model/forward.hpp"

#include <algorithm>

#include "runtime/error.hpp"

namespace troupe {

namespace {

size_t product(int a, int b) { return static_cast<size_t>(a) * static_cast<size_t>(b); }

// Columns that one item of a split product computes: a multiple of two tiles, enough to be worth a hand-over, few
// enough that the threads end together.
int columns_of_item(int columns, int threads) {
  if (threads == 1) return columns;
  constexpr int grain = 64, items_a_thread = 4;
  const int wanted = columns / (threads * items_a_thread);
  return std::max(grain, (wanted + grain / 2) / grain * grain);
}

// Rows that one item of a product computes where there are so many that its weights are better read by each thread than
// its rows moved between the threads' caches; 0: too few, the product is shared out by columns.
int rows_of_item(int rows, int threads) {
  constexpr int least = 64, most = 128;  // most: what passes together over a panel of weights
  if (rows < least * threads) return 0;
  const int items = (rows + most * threads - 1) / (most * threads) * threads;
  constexpr int grain = 32;  // a pass of tiles
  return (rows + items * grain - 1) / (items * grain) * grain;
}

// Calls body(first, count) for each range of `rows_each` rows, on the team.
template <class Body>
void for_row_ranges(const char* section, int rows, int rows_each, worker_team& team, Body body) {
  team.parallel(section, (rows + rows_each - 1) / rows_each,
                [&](int i, worker_memory&) { body(i * rows_each, std::min(rows_each, rows - i * rows_each)); });
}

int widest_mlp(const model_config& config) {
  return std::max(config.first_k_dense_replace > 0 || config.n_routed_experts == 0 ? config.intermediate_size : 0,
                  config.shared_intermediate_size());
}

}  // namespace

micro_batch_rows::micro_batch_rows(const model_config& config, const kernels::compute& math, int rows_max)
    : rows_max_(rows_max) {
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
  const int together = std::min(rows_max, attention_rows);
  absorbed.resize(product(together, h * width) * sizeof(float));
  heads_out.resize(product(together, h * config.v_head_dim));
  cosines.resize(rows(config.qk_rope_head_dim / 2));
  sines.resize(rows(config.qk_rope_head_dim / 2));
  router.resize(rows(config.n_routed_experts));
  normed_input.resize(math.input_bytes(rows_max, config.hidden_size));
  if (config.q_lora_rank > 0) latent_q_input.resize(math.input_bytes(rows_max, config.q_lora_rank));
  heads_input.resize(math.input_bytes(rows_max, h * config.v_head_dim));
  mlp_input.resize(math.input_bytes(rows_max, widest_mlp(config)));
  const auto form = math.form_of({.heads = h, .rk = config.kv_lora_rank, .dr = config.qk_rope_head_dim, .scale = 1});
  queries.resize(static_cast<size_t>(together) * form.query_bytes);
  attended.resize(static_cast<size_t>(together) * form.attended_bytes);
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

kernels::mla_shape forward_pass::attention_shape() const {
  return {.heads = config_.num_attention_heads,
          .rk = config_.kv_lora_rank,
          .dr = config_.qk_rope_head_dim,
          .scale = softmax_scale_};
}

void forward_pass::project(const char* section, std::initializer_list<projection> parts,
                           const kernels::product_input& x, worker_team& team) const {
  if (const int rows = rows_of_item(x.m, team.size()); rows > 0) {
    for_row_ranges(section, x.m, rows, team, [&](int first, int count) {
      const kernels::product_input some{x.data + math_.input_bytes(first, x.k), count, x.k};
      for (const auto& part : parts) {
        const int n = part.weight->n();
        math_.matmul(*part.weight, some, part.y + product(first, n), n, 0, n);
      }
    });
    return;
  }
  int all_columns = 0;
  for (const auto& part : parts) all_columns += part.weight->n();
  const int columns = columns_of_item(all_columns, team.size());
  const auto items_of = [&](const projection& part) { return (part.weight->n() + columns - 1) / columns; };
  int items = 0;
  for (const auto& part : parts) items += items_of(part);
  team.parallel(section, items, [&](int i, worker_memory&) {
    for (const auto& part : parts) {
      if (i >= items_of(part)) {
        i -= items_of(part);
        continue;
      }
      const int n = part.weight->n();
      math_.matmul(*part.weight, x, part.y, n, i * columns, std::min(n, (i + 1) * columns));
      return;
    }
  });
}

void forward_pass::norm_row(const float* x, const std::vector<float>& weight, int row, std::byte* input, float* out,
                            worker_memory& memory) const {
  const int width = static_cast<int>(weight.size());
  auto* values = reinterpret_cast<float*>(memory.workspace.take(static_cast<size_t>(width) * 6));
  auto* narrow = reinterpret_cast<uint16_t*>(values + width);
  float* wide = out != nullptr ? out : values;
  math_.rms_norm(x, weight.data(), wide, width, config_.rms_norm_eps);
  if (rounds_norms_) {
    kernels::bf16_round_row(wide, narrow, width);
    if (input != nullptr) math_.input_row(narrow, row, width, input);
    if (out != nullptr) kernels::bf16_widen_row(narrow, out, width);
  } else if (input != nullptr) {
    math_.input_row(wide, row, width, input);
  }
}

void forward_pass::begin(micro_batch_rows& batch, worker_team& team) const {
  const int d = config_.hidden_size;
  const int half = config_.qk_rope_head_dim / 2;
  team.parallel("embedding", batch.count(), [&](int i, worker_memory&) {
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
  const int rq = config_.q_lora_rank;
  team.parallel("input norm", m, [&](int i, worker_memory& memory) {
    norm_row(batch.x.data() + product(i, d), weights.input_norm, i, batch.normed_input.data(), nullptr, memory);
  });
  const kernels::product_input normed{batch.normed_input.data(), m, d};
  const bool low_rank = static_cast<bool>(weights.q_a);
  if (low_rank)
    project("q_a, kv_a", {{&weights.q_a, batch.latent_q.data()}, {&weights.kv_a, batch.kv.data()}}, normed, team);
  else
    project("q, kv_a", {{&weights.q_b, batch.q.data()}, {&weights.kv_a, batch.kv.data()}}, normed, team);
  team.parallel("latent norms, rope", m, [&](int i, worker_memory& memory) {
    if (low_rank)
      norm_row(batch.latent_q.data() + product(i, rq), weights.q_a_norm, i, batch.latent_q_input.data(), nullptr,
               memory);
    float* kv = batch.kv.data() + product(i, rk + dr);
    norm_row(kv, weights.kv_a_norm, i, nullptr, kv, memory);
    kernels::rope_rotate(kv + rk, batch.cosines.data() + product(i, dr / 2), batch.sines.data() + product(i, dr / 2),
                         dr);
    const auto& row = batch.inputs[static_cast<size_t>(i)];
    const int tokens = kernels::kv_layout::tokens;
    const int32_t block = (*row.blocks)[static_cast<size_t>(row.position / tokens)];
    math_.kv_write(cache.layout(), cache.address(block, layer), row.position % tokens, kv, kv + rk);
  });
  if (low_rank) project("q_b", {{&weights.q_b, batch.q.data()}}, {batch.latent_q_input.data(), m, rq}, team);
}

void forward_pass::attention_core(micro_batch_rows& batch, kv_cache& cache, int layer, worker_team& team) const {
  const auto& weights = weights_.layers[static_cast<size_t>(layer)];
  const int m = batch.count();
  const int d = config_.hidden_size;
  for (int first = 0; first < m; first += attention_rows)
    attend(batch, cache, layer, first, std::min(attention_rows, m - first), team);
  project("o", {{&weights.attention.o, batch.normed.data()}},
          {batch.heads_input.data(), m, config_.num_attention_heads * config_.v_head_dim}, team);
  const bool moe = config_.is_moe(layer);
  const auto parameters = config_.router();
  const float* bias = weights.router_bias.empty() ? nullptr : weights.router_bias.data();
  const int experts = config_.n_routed_experts;
  team.parallel("post norm", m, [&](int i, worker_memory& memory) {
    float* x = batch.x.data() + product(i, d);
    float* normed = batch.normed.data() + product(i, d);
    math_.axpy(1.0F, normed, x, d);
    norm_row(x, weights.attention.post_norm, i, batch.normed_input.data(), normed, memory);
  });
  if (!moe) return;
  // The router's product stays in FP32 (docs/numerics.md). A piece of it is some rows by some experts.
  constexpr int rows_of_piece = 32, experts_of_piece = 32;
  const int row_pieces = (m + rows_of_piece - 1) / rows_of_piece;
  const int column_pieces = (experts + experts_of_piece - 1) / experts_of_piece;
  team.parallel("router", row_pieces * column_pieces, [&](int item, worker_memory& memory) {
    const int row = item / column_pieces * rows_of_piece, column = item % column_pieces * experts_of_piece;
    math_.matmul(weights.router, batch.normed.data() + product(row, d), d, batch.router.data() + product(row, experts),
                 experts, std::min(rows_of_piece, m - row), column, std::min(experts, column + experts_of_piece),
                 memory.kernel);
  });
  team.parallel("top-k", m, [&](int i, worker_memory&) {
    kernels::route(parameters, batch.router.data() + product(i, experts), bias,
                   batch.routes.data() + product(i, parameters.top_k));
  });
}

void forward_pass::mlp(const mlp_weights& weights, micro_batch_rows& batch, float* out, const char* gate_section,
                       const char* down_section, worker_team& team) const {
  const int m = batch.count();
  const int width = weights.gate.n();
  const int columns = columns_of_item(width, team.size());
  const kernels::product_input normed{batch.normed_input.data(), m, config_.hidden_size};
  if (const int rows = rows_of_item(m, team.size()); rows > 0) {
    for_row_ranges(gate_section, m, rows, team, [&](int first, int count) {
      math_.gated_matmul(weights.gate, weights.up, {normed.data + math_.input_bytes(first, normed.k), count, normed.k},
                         batch.mlp_input.data() + math_.input_bytes(first, width), 0, width);
    });
    project(down_section, {{&weights.down, out}}, {batch.mlp_input.data(), m, width}, team);
    return;
  }
  team.parallel(gate_section, (width + columns - 1) / columns, [&](int i, worker_memory&) {
    math_.gated_matmul(weights.gate, weights.up, normed, batch.mlp_input.data(), i * columns,
                       std::min(width, (i + 1) * columns));
  });
  project(down_section, {{&weights.down, out}}, {batch.mlp_input.data(), m, width}, team);
}

void forward_pass::dense_mlp(micro_batch_rows& batch, int layer, worker_team& team) const {
  const int d = config_.hidden_size;
  mlp(weights_.layers[static_cast<size_t>(layer)].dense, batch, batch.shared.data(), "dense gate, up", "dense down",
      team);
  team.parallel("dense sum", batch.count(), [&](int i, worker_memory&) {
    math_.axpy(1.0F, batch.shared.data() + product(i, d), batch.x.data() + product(i, d), d);
  });
}

void forward_pass::shared_expert(micro_batch_rows& batch, int layer, worker_team& team) const {
  const auto& weights = weights_.layers[static_cast<size_t>(layer)].shared;
  if (weights.gate)
    mlp(weights, batch, batch.shared.data(), "shared gate, up", "shared down", team);
  else
    std::fill_n(batch.shared.begin(), product(batch.count(), config_.hidden_size), 0.0F);
}

void forward_pass::combine(micro_batch_rows& batch, worker_team& team) const {
  const int d = config_.hidden_size;
  const int k = config_.num_experts_per_tok;
  const auto kind = bf16_outputs_ ? kernels::element::bf16 : kernels::element::f32;
  team.parallel("combine", batch.count(), [&](int i, worker_memory&) {
    const auto* outputs = batch.expert_outputs.data() + product(i, k);
    TROUPE_CHECK(std::find(outputs, outputs + k, nullptr) == outputs + k,
                 "a combine began before every expert had answered");
    math_.combine_row(outputs, kind, batch.routes.data() + product(i, k), k, batch.shared.data() + product(i, d),
                      batch.x.data() + product(i, d), d);
  });
}

void forward_pass::head(micro_batch_rows& batch, std::span<const int32_t> sampling_rows, worker_team& team) const {
  const int d = config_.hidden_size;
  const int m = static_cast<int>(sampling_rows.size());
  // The sampled rows' inputs take the place of the first rows', which no later stage of this step reads.
  team.parallel("final norm", m, [&](int i, worker_memory& memory) {
    norm_row(batch.x.data() + product(sampling_rows[static_cast<size_t>(i)], d), weights_.final_norm, i,
             batch.normed_input.data(), nullptr, memory);
  });
  const size_t needed = product(m, config_.vocab_size);
  if (batch.logits.size() < needed) batch.logits.resize(needed);
  project("head", {{&weights_.head, batch.logits.data()}}, {batch.normed_input.data(), m, d}, team);
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
