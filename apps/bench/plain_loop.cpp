#include "apps/bench/plain_loop.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "runtime/error.hpp"

namespace troupe {

namespace {

constexpr int rows_max = 512;

using bench_clock = std::chrono::steady_clock;

double seconds_since(bench_clock::time_point begin) {
  return std::chrono::duration<double>(bench_clock::now() - begin).count();
}

std::span<const std::byte> bytes_of(const kernels::packed_matrix& weight) { return {weight.data(), weight.bytes()}; }

// A product of `rows` rows with these weights.
section_work product_work(const char* section, int rows, std::initializer_list<const kernels::packed_matrix*> weights) {
  section_work work{section, {}, 0};
  for (const auto* weight : weights) {
    if (!*weight) continue;
    work.reads.push_back(bytes_of(*weight));
    work.flops += 2.0 * rows * weight->n() * weight->k();
  }
  return work;
}

}  // namespace

plain_loop::plain_loop(kernels::profile profile, int threads)
    : math_(kernels::compute::make(profile)), team_(threads), bf16_(profile == kernels::profile::amx_bf16) {
  kernels::prepare_thread();
}

plain_loop::plain_loop(plain_loop_weights weights, kernels::profile profile, int threads)
    : plain_loop(profile, threads) {
  weights_ = std::move(weights);
  use_weights();
}

result<std::unique_ptr<plain_loop>> plain_loop::load(const std::string& model, kernels::profile profile, int threads) {
  std::unique_ptr<plain_loop> loop(new plain_loop(profile, threads));
  if (const auto loaded = loop->load_weights(model); !loaded) return loaded.failure();
  return loop;
}

result<void> plain_loop::load_weights(const std::string& model) {
  auto config = load_model_config(model);
  if (!config) return config.failure();
  weights_.config = *config;
  auto files = checkpoint::open(model);
  if (!files) return files.failure();
  const parallel_runner run = [this](int count, const std::function<void(int)>& item) {
    team_.parallel("load", count, [&](int i, worker_memory&) { item(i); });
  };
  auto shard = load_shard_weights(*files, weights_.config, *math_, run);
  if (!shard) return shard.failure();
  weights_.shard = *shard;
  std::vector<std::optional<error>> failures(static_cast<size_t>(weights_.config.num_hidden_layers));
  weights_.experts.resize(static_cast<size_t>(weights_.config.num_hidden_layers * weights_.config.n_routed_experts));
  run(weights_.config.num_hidden_layers, [&](int layer) {
    for (int expert = 0; weights_.config.is_moe(layer) && expert < weights_.config.n_routed_experts; ++expert) {
      auto weights = load_expert_weights(*files, weights_.config, *math_, layer, expert);
      if (!weights) {
        failures[static_cast<size_t>(layer)] = weights.failure();
        return;
      }
      weights_.experts[static_cast<size_t>(layer * weights_.config.n_routed_experts + expert)] = *weights;
    }
  });
  for (auto& failure : failures)
    if (failure) return *failure;
  use_weights();
  return {};
}

void plain_loop::use_weights() {
  const auto& config = weights_.config;
  pass_.emplace(config, *weights_.shard, *math_, bf16_);
  batches_.resize(static_cast<size_t>(config.n_routed_experts));
  uses_.resize(static_cast<size_t>(config.num_hidden_layers));
}

double plain_loop::prefill(int tokens) {
  const auto begin = bench_clock::now();
  start_prompt(tokens);
  finish_prompt();
  return seconds_since(begin);
}

void plain_loop::start_prompt(int tokens) {
  start(1, tokens);
  prompt_end_ = tokens;
  for (next_position_ = 0; prompt_end_ - next_position_ > rows_max; next_position_ += rows_max) {
    prompt_rows(next_position_, rows_max);
    step({});
  }
}

void plain_loop::finish_prompt() {
  prompt_rows(next_position_, prompt_end_ - next_position_);
  step({prompt_end_ - next_position_ - 1});
}

void plain_loop::prompt_rows(int first, int count) {
  rows_->inputs.clear();
  for (int at = first; at < first + count; ++at) rows_->inputs.push_back({token_of(0, at), at, &sequences_[0]});
}

double plain_loop::decode(int batch, int context, int steps) {
  start_decoding(batch, context, steps + 1);
  decode_step();
  const auto begin = bench_clock::now();
  for (int at = 0; at < steps; ++at) decode_step();
  return seconds_since(begin);
}

void plain_loop::start_decoding(int batch, int context, int steps) {
  start(batch, context + steps);
  next_position_ = context;
  sampled_rows_.resize(static_cast<size_t>(batch));
  std::iota(sampled_rows_.begin(), sampled_rows_.end(), 0);
}

void plain_loop::decode_step() {
  rows_->inputs.clear();
  for (size_t s = 0; s < sequences_.size(); ++s)
    rows_->inputs.push_back({token_of(static_cast<int>(s), next_position_), next_position_, &sequences_[s]});
  ++next_position_;
  step(sampled_rows_);
}

int32_t plain_loop::token_of(int sequence, int at) const {
  const uint64_t mixed =
      (static_cast<uint64_t>(sequence) * 7919 + static_cast<uint64_t>(at) + 1) * uint64_t{0x9e3779b97f4a7c15};
  return static_cast<int32_t>((mixed >> 33U) % static_cast<uint64_t>(weights_.config.vocab_size));
}

void plain_loop::start(int sequences, int positions) {
  const int blocks = (positions + kernels::kv_layout::tokens - 1) / kernels::kv_layout::tokens;
  cache_ = std::make_unique<kv_cache>(math_->layout_kv(weights_.config.kv_lora_rank, weights_.config.qk_rope_head_dim),
                                      weights_.config.num_hidden_layers, sequences * blocks);
  sequences_.assign(static_cast<size_t>(sequences), {});
  for (auto& sequence : sequences_) cache_->allocate(blocks, sequence);
  if (rows_ == nullptr) rows_ = std::make_unique<micro_batch_rows>(weights_.config, *math_, rows_max);
}

void plain_loop::step(const std::vector<int32_t>& sampled) {
  pass_->begin(*rows_, team_);
  for (int layer = 0; layer < weights_.config.num_hidden_layers; ++layer) {
    pass_->attention_inputs(*rows_, *cache_, layer, team_);
    pass_->attention_core(*rows_, *cache_, layer, team_);
    if (!weights_.config.is_moe(layer)) {
      pass_->dense_mlp(*rows_, layer, team_);
      continue;
    }
    routed_experts(layer);
    pass_->shared_expert(*rows_, layer, team_);
    pass_->combine(*rows_, team_);
  }
  if (!sampled.empty()) {
    pass_->head(*rows_, sampled, team_);
    sample(sampled.size());
  }
  sampled_ = sampled.size();
}

// The likeliest tokens, as a shard samples them; what follows does not depend on them.
void plain_loop::sample(size_t rows) {
  const int vocab = weights_.config.vocab_size;
  tokens_.resize(std::max(tokens_.size(), rows));
  team_.parallel("sampling", static_cast<int>(rows), [&](int i, worker_memory& memory) {
    const float* logits = rows_->logits.data() + static_cast<size_t>(i) * static_cast<size_t>(vocab);
    tokens_[static_cast<size_t>(i)] =
        kernels::sample(*math_, logits, vocab, {.temperature = 0, .top_p = 1, .top_k = 0}, 0, 0, 0, memory.kernel);
  });
}

void plain_loop::routed_experts(int layer) {
  const int d = weights_.config.hidden_size;
  const size_t element_bytes = bf16_ ? 2 : 4;
  const int k = weights_.config.num_experts_per_tok;
  outputs_.resize(static_cast<size_t>(rows_->count() * k) * static_cast<size_t>(d) * element_bytes);
  for (auto& batch : batches_) {
    batch.pairs.clear();
    batch.outputs.clear();
  }
  for (int i = 0; i < rows_->count() * k; ++i) {
    auto& batch = batches_[static_cast<size_t>(rows_->routes[static_cast<size_t>(i)].expert)];
    auto* out = outputs_.data() + static_cast<size_t>(i) * static_cast<size_t>(d) * element_bytes;
    batch.pairs.push_back(i / k);
    batch.outputs.push_back(out);
    rows_->expert_outputs[static_cast<size_t>(i)] = out;
  }
  used_.clear();
  experts_used_.clear();
  auto& uses = uses_[static_cast<size_t>(layer)];
  uses.clear();
  for (int e = 0; e < weights_.config.n_routed_experts; ++e) {
    const auto& batch = batches_[static_cast<size_t>(e)];
    if (batch.pairs.empty()) continue;
    const int expert = layer * weights_.config.n_routed_experts + e;
    const int m = static_cast<int>(batch.pairs.size());
    used_.push_back({weights_.experts[static_cast<size_t>(expert)].get(), m, batch.outputs.data(),
                     bf16_ ? kernels::element::bf16 : kernels::element::f32});
    experts_used_.push_back(e);
    uses.push_back({expert, m});
  }
  const auto load = [&](int i, int row, int columns, std::byte* input, worker_memory&) {
    const auto& batch = batches_[static_cast<size_t>(experts_used_[static_cast<size_t>(i)])];
    math_->input_row(rows_->normed.data() + batch.pairs[static_cast<size_t>(row)] * columns, row, columns, input);
  };
  products_.run(
      *math_, used_, load, [](int, int, int) {}, team_);
}

void plain_loop::add_attention(int layer, std::vector<section_work>& works) const {
  const auto& weights = weights_.shard->layers[static_cast<size_t>(layer)].attention;
  const int m = rows_->count();
  if (weights.q_a) {
    works.push_back(product_work("q_a, kv_a", m, {&weights.q_a, &weights.kv_a}));
    works.push_back(product_work("q_b", m, {&weights.q_b}));
  } else {
    works.push_back(product_work("q, kv_a", m, {&weights.q_b, &weights.kv_a}));
  }
  const auto of_heads = [&](const char* section, const std::vector<kernels::packed_matrix>& heads) {
    section_work work{section, {}, 0};
    for (const auto& head : heads) {
      auto one = product_work(section, m, {&head});
      work.reads.push_back(one.reads.front());
      work.flops += one.flops;
    }
    return work;
  };
  works.push_back(of_heads("absorb keys", weights.uk));
  section_work attention{"attention", {}, pass_->attention_flops(*rows_)};
  const std::vector<int32_t>* last = nullptr;
  for (const auto& row : rows_->inputs) {
    if (row.blocks == last) continue;  // rows of one sequence read the same latents
    last = row.blocks;
    const int count = cache_->blocks_for(row.position + 1);
    for (int b = 0; b < count; ++b)
      attention.reads.push_back(
          {cache_->address((*row.blocks)[static_cast<size_t>(b)], layer), cache_->layout().block_bytes});
  }
  works.push_back(std::move(attention));
  works.push_back(of_heads("absorb values", weights.uv));
  works.push_back(product_work("o", m, {&weights.o}));
}

std::vector<section_work> plain_loop::last_step() const {
  std::vector<section_work> works;
  const int m = rows_->count();
  for (int layer = 0; layer < weights_.config.num_hidden_layers; ++layer) {
    add_attention(layer, works);
    const auto& weights = weights_.shard->layers[static_cast<size_t>(layer)];
    if (!weights_.config.is_moe(layer)) {
      works.push_back(product_work("dense gate, up", m, {&weights.dense.gate, &weights.dense.up}));
      works.push_back(product_work("dense down", m, {&weights.dense.down}));
      continue;
    }
    works.push_back(product_work("router", m, {&weights.router}));
    section_work gates{"expert gate, up", {}, 0}, downs{"expert down", {}, 0}, both{"experts", {}, 0};
    for (const auto& use : uses_[static_cast<size_t>(layer)]) {
      const auto& expert = *weights_.experts[static_cast<size_t>(use.expert)];
      for (const auto* weight : {&expert.gate, &expert.up, &expert.down}) {
        (weight == &expert.down ? downs : gates).reads.push_back(bytes_of(*weight));
        both.reads.push_back(bytes_of(*weight));
      }
      const double one = 2.0 * use.rows * expert.down.n() * expert.down.k();
      gates.flops += 2 * one;
      downs.flops += one;
      both.flops += 3 * one;
    }
    // They are computed together or one after the other (`expert_products`).
    const bool together = products_.computes_whole(uses_[static_cast<size_t>(layer)].size(),
                                                   weights_.config.moe_intermediate_size, team_.size());
    if (together) {
      works.push_back(std::move(both));
    } else {
      works.push_back(std::move(gates));
      works.push_back(std::move(downs));
    }
    works.push_back(product_work("shared gate, up", m, {&weights.shared.gate, &weights.shared.up}));
    works.push_back(product_work("shared down", m, {&weights.shared.down}));
  }
  if (sampled_ > 0) works.push_back(product_work("head", static_cast<int>(sampled_), {&weights_.shard->head}));
  return works;
}

}  // namespace troupe
