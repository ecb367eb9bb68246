// Tokens a second of the model's kernels in a plain loop: no actor, no message, no queue. What the serving path
// (bench_serving) is measured against, and the quickest way to try a kernel on a whole model.
//
//   bench_loop --model DIR [--threads N] [--profile P] [--runs N] [--context N] [--batches 1,8,32,64]
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/model/forward.hpp"
#include "tests/bench/bench_1b.hpp"

namespace troupe {
namespace {

using bench_clock = std::chrono::steady_clock;

double seconds_since(bench_clock::time_point begin) {
  return std::chrono::duration<double>(bench_clock::now() - begin).count();
}

class plain_loop {
 public:
  plain_loop(const std::string& model, kernels::profile profile, int threads)
      : math_(kernels::compute::make(profile)),
        config_(*load_model_config(model)),
        files_(*checkpoint::open(model)),
        team_(threads),
        shard_(*load_shard_weights(files_, config_, *math_, runner())),
        experts_(static_cast<size_t>(config_.num_hidden_layers * config_.n_routed_experts)),
        pass_(config_, *shard_, *math_, profile == kernels::profile::amx_bf16),
        bf16_(profile == kernels::profile::amx_bf16) {
    kernels::prepare_thread();
    runner()(static_cast<int>(experts_.size()), [&](int i) {
      const int layer = i / config_.n_routed_experts;
      if (!config_.is_moe(layer)) return;
      experts_[static_cast<size_t>(i)] =
          *load_expert_weights(files_, config_, *math_, layer, i % config_.n_routed_experts);
    });
  }

  // Seconds of a prompt of `tokens` in one micro-batch (at most 512 rows at a time).
  double prefill(int tokens) {
    start(1, tokens);
    const auto begin = bench_clock::now();
    for (int at = 0; at < tokens; at += rows_max) {
      const int count = std::min(rows_max, tokens - at);
      rows_->inputs.clear();
      for (int i = 0; i < count; ++i) rows_->inputs.push_back({token_of(0, at + i), at + i, &sequences_[0]});
      step(at + count == tokens ? std::vector<int32_t>{count - 1} : std::vector<int32_t>{});
    }
    return seconds_since(begin);
  }

  // Seconds of `steps` decode steps of `batch` sequences, each `context` positions long at the start. What the cache
  // holds before does not matter to the time.
  double decode(int batch, int context, int steps) {
    start(batch, context + steps + 1);
    std::vector<int32_t> all(static_cast<size_t>(batch));
    std::iota(all.begin(), all.end(), 0);
    const auto one = [&](int at) {
      rows_->inputs.clear();
      for (int s = 0; s < batch; ++s)
        rows_->inputs.push_back({token_of(s, at), context + at, &sequences_[static_cast<size_t>(s)]});
      step(all);
    };
    one(0);
    const auto begin = bench_clock::now();
    for (int at = 1; at <= steps; ++at) one(at);
    return seconds_since(begin);
  }

 private:
  static constexpr int rows_max = 512;

  parallel_runner runner() {
    return [this](int count, const std::function<void(int)>& item) {
      team_.parallel(count, [&](int i, worker_memory&) { item(i); });
    };
  }

  int32_t token_of(int sequence, int at) const {
    const uint64_t mixed =
        (static_cast<uint64_t>(sequence) * 7919 + static_cast<uint64_t>(at) + 1) * uint64_t{0x9e3779b97f4a7c15};
    return static_cast<int32_t>(3 + (mixed >> 33U) % static_cast<uint64_t>(config_.vocab_size - 3));
  }

  void start(int sequences, int positions) {
    const int blocks = (positions + kernels::kv_layout::tokens - 1) / kernels::kv_layout::tokens;
    cache_ = std::make_unique<kv_cache>(math_->layout_kv(config_.kv_lora_rank, config_.qk_rope_head_dim),
                                        config_.num_hidden_layers, sequences * blocks);
    sequences_.assign(static_cast<size_t>(sequences), {});
    for (auto& sequence : sequences_) cache_->allocate(blocks, sequence);
    if (rows_ == nullptr) rows_ = std::make_unique<micro_batch_rows>(config_, *math_, rows_max);
  }

  void step(const std::vector<int32_t>& sampled) {
    pass_.begin(*rows_, team_);
    for (int layer = 0; layer < config_.num_hidden_layers; ++layer) {
      pass_.attention_inputs(*rows_, *cache_, layer, team_);
      pass_.attention_core(*rows_, *cache_, layer, team_);
      if (!config_.is_moe(layer)) {
        pass_.dense_mlp(*rows_, layer, team_);
        continue;
      }
      routed_experts(layer);
      pass_.shared_expert(*rows_, layer, team_);
      pass_.combine(*rows_, team_);
    }
    if (!sampled.empty()) pass_.head(*rows_, sampled, team_);
  }

  struct expert_batch {
    int expert = 0;
    std::vector<int> pairs;
    std::vector<std::byte*> outputs;
    line_buffer input, hidden;
  };

  void routed_experts(int layer) {
    const int d = config_.hidden_size, width = config_.moe_intermediate_size;
    const size_t element_bytes = bf16_ ? 2 : 4;
    const int k = config_.num_experts_per_tok;
    outputs_.resize(static_cast<size_t>(rows_->count() * k) * static_cast<size_t>(d) * element_bytes);
    batches_.resize(static_cast<size_t>(config_.n_routed_experts));
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
    for (int e = 0; e < config_.n_routed_experts; ++e) {
      auto& batch = batches_[static_cast<size_t>(e)];
      if (batch.pairs.empty()) continue;
      const int m = static_cast<int>(batch.pairs.size());
      batch.expert = layer * config_.n_routed_experts + e;
      batch.input.resize(math_->input_bytes(m, d));
      batch.hidden.resize(math_->input_bytes(m, width));
      used_.push_back(&batch);
    }
    const int parts =
        team_.size() == 1 ? 1 : std::clamp(32 / static_cast<int>(used_.size()), 1, std::max(1, width / 64));
    const int items = static_cast<int>(used_.size());
    team_.parallel(items, [&](int i, worker_memory&) {
      auto& batch = *used_[static_cast<size_t>(i)];
      for (size_t row = 0; row < batch.pairs.size(); ++row)
        math_->input_row(rows_->normed.data() + batch.pairs[row] * d, static_cast<int>(row), d, batch.input.data());
    });
    team_.parallel(items * parts, [&](int i, worker_memory&) {
      auto& batch = *used_[static_cast<size_t>(i / parts)];
      const auto& weights = *experts_[static_cast<size_t>(batch.expert)];
      const int part = i % parts, m = static_cast<int>(batch.pairs.size());
      math_->gated_matmul(weights.gate, weights.up, {batch.input.data(), m, d}, batch.hidden.data(),
                          width / parts * part, width / parts * (part + 1));
    });
    team_.parallel(items * parts, [&](int i, worker_memory&) {
      auto& batch = *used_[static_cast<size_t>(i / parts)];
      const auto& weights = *experts_[static_cast<size_t>(batch.expert)];
      const int part = i % parts, m = static_cast<int>(batch.pairs.size());
      math_->matmul_apart(weights.down, {batch.hidden.data(), m, width},
                          bf16_ ? kernels::element::bf16 : kernels::element::f32, batch.outputs.data(),
                          d / parts * part, d / parts * (part + 1));
    });
  }

  std::unique_ptr<kernels::compute> math_;
  model_config config_;
  checkpoint files_;
  worker_team team_;
  std::shared_ptr<const shard_weights> shard_;
  std::vector<std::shared_ptr<const expert_weights>> experts_;
  forward_pass pass_;
  bool bf16_;
  std::unique_ptr<kv_cache> cache_;
  std::vector<std::vector<int32_t>> sequences_;
  std::unique_ptr<micro_batch_rows> rows_;
  std::vector<expert_batch> batches_;
  std::vector<expert_batch*> used_;
  std::vector<std::byte> outputs_;
};

int bench(const std::string& model, kernels::profile profile, int threads, int runs, const std::vector<int>& prompts,
          const std::vector<int>& batches, int context) {
  const auto begin = bench_clock::now();
  plain_loop loop(model, profile, threads);
  std::printf("loaded in %.2f s\n", seconds_since(begin));
  std::map<std::string, std::vector<double>> figures;
  std::vector<std::string> names;
  const auto note = [&](const std::string& name, double rate) {
    if (figures.find(name) == figures.end()) names.push_back(name);
    figures[name].push_back(rate);
  };
  loop.prefill(64);
  for (int run = 0; run < runs; ++run) {
    for (const int tokens : prompts) note("prefill " + std::to_string(tokens), tokens / loop.prefill(tokens));
    for (const int batch : batches) {
      const int steps = batch == 1 ? 48 : 24;
      note("decode batch " + std::to_string(batch), batch * steps / loop.decode(batch, context, steps));
    }
  }
  std::printf("%-18s %10s %10s %10s\n", "tokens/s", "median", "least", "most");
  for (const auto& name : names) {
    auto& values = figures[name];
    std::sort(values.begin(), values.end());
    std::printf("%-18s %10.1f %10.1f %10.1f\n", name.c_str(), values[values.size() / 2], values.front(), values.back());
  }
  return 0;
}

}  // namespace
}  // namespace troupe

int main(int count, char** arguments) {
  CLI::App app{"Tokens a second of the kernels in a plain loop"};
  std::string model, profile = "amx_bf16";
  int threads = 2, runs = 5, context = 16;
  std::vector<int> batches{1, 8, 32, 64}, prompts{512};
  app.add_option("--model", model, "Model directory")->required();
  app.add_option("--profile", profile, "f32 or amx_bf16")->capture_default_str();
  app.add_option("--threads", threads, "Compute threads")->capture_default_str()->check(CLI::Range(1, 1024));
  app.add_option("--runs", runs, "Runs; medians are printed")->capture_default_str()->check(CLI::Range(1, 1000));
  app.add_option("--context", context, "Positions before the first decoded token")->capture_default_str();
  app.add_option("--batches", batches, "Sequences that decode together")->delimiter(',')->capture_default_str();
  app.add_option("--prompts", prompts, "Lengths of prompts")->delimiter(',')->capture_default_str();
  CLI11_PARSE(app, count, arguments);
  const auto wanted = troupe::kernels::profile_from_name(profile);
  if (!wanted) {
    std::fprintf(stderr, "bench_loop: there is no profile '%s'; use f32 or amx_bf16\n", profile.c_str());
    return 2;
  }
  return troupe::bench(model, *wanted, threads, runs, prompts, batches, context);
}
