// Tokens a second of the whole serving path in one process: API server, balancers, shard, expert host,
// experts and device; everything but HTTP and the network.
//
//   bench_serving --model DIR [--make-bench-1b [--fp8] [--top-k K] [--balanced]] [--threads N] [--profile P]
//   [--runs N] [--loop] [--start]
//
// Prints medians with spread of N runs: prefill of 512 and 2,048, decode at batch 1, 8, 32 and 64.
// With --loop: beside the same kernels on the same weights in a plain loop, in turns, and the ratio.
// With --start: the time from nothing to the first token instead.
#include <CLI/CLI.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>

#include "apps/bench/plain_loop.hpp"
#include "apps/cluster/head.hpp"
#include "tests/bench/bench_1b.hpp"
#include "tests/bench/estimate.hpp"
#include "tests/bench/start_bench.hpp"

namespace troupe {
namespace {

using bench_clock = std::chrono::steady_clock;

double seconds_since(bench_clock::time_point begin) {
  return std::chrono::duration<double>(bench_clock::now() - begin).count();
}

// Submits requests together and notes when tokens arrive.
class batch_run {
 public:
  void submit(head& front, generation_request request) {
    {
      const std::lock_guard lock(mutex_);
      ++open_;
    }
    const size_t stream = counts_.size();
    counts_.push_back(0);
    front.submit(std::move(request), [this, stream](generation_event event) { hear(stream, event); });
  }

  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_ == 0; });
    if (failure_) {
      std::fprintf(stderr, "bench_serving: %s\n", failure_->message.c_str());
      std::exit(1);
    }
  }

  // Tokens a second from the moment when every stream had a few tokens to the first stream's end.
  double decode_rate() const {
    const double seconds = std::chrono::duration<double>(first_end_ - all_skipped_).count();
    return static_cast<double>(counted_) / seconds;
  }

  void expect(uint32_t streams, uint32_t skip) {
    streams_ = streams;
    skip_ = skip;
    counts_.reserve(streams);
  }

 private:
  void hear(size_t stream, const generation_event& event) {
    const std::lock_guard lock(mutex_);
    if (const auto* delta = std::get_if<generation_delta>(&event)) {
      counts_[stream] += static_cast<uint32_t>(delta->tokens.size());
      if (skipped_ < streams_ && counts_[stream] == skip_ && ++skipped_ == streams_)
        all_skipped_ = bench_clock::now();
      else if (skipped_ == streams_ && !ended_)
        counted_ += delta->tokens.size();
    } else if (std::get_if<generation_accepted>(&event) == nullptr) {
      if (const auto* failed = std::get_if<generation_failed>(&event)) failure_ = failed->cause;
      if (!ended_) first_end_ = bench_clock::now();
      ended_ = true;
      --open_;
      changed_.notify_all();
    }
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint32_t> counts_;
  uint32_t streams_ = 1;
  uint32_t skip_ = 0;
  uint32_t skipped_ = 0;
  uint64_t counted_ = 0;
  bench_clock::time_point all_skipped_;
  bench_clock::time_point first_end_;
  bool ended_ = false;
  int open_ = 0;
  std::optional<error> failure_;
};

generation_request request_of(int vocabulary, uint32_t prompt_tokens, uint32_t completion_tokens, uint32_t salt) {
  generation_request request;
  uint64_t state = 12345 + salt;
  for (uint32_t i = 0; i < prompt_tokens; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    request.prompt_ids.push_back(static_cast<int32_t>(3 + (state >> 33U) % static_cast<uint64_t>(vocabulary - 3)));
  }
  request.max_tokens = completion_tokens;
  request.ignore_eos = true;
  request.temperature = 0;
  return request;
}

double measure_prefill(head& front, uint32_t tokens, uint32_t salt) {
  batch_run run;
  run.expect(1, 1);
  const auto begin = bench_clock::now();
  run.submit(front, request_of(front.model()->vocab_size, tokens, 1, salt));
  run.wait();
  return tokens / seconds_since(begin);
}

double measure_decode(head& front, uint32_t batch, uint32_t tokens, uint32_t salt) {
  batch_run run;
  const uint32_t skip = 4;
  run.expect(batch, skip);
  for (uint32_t i = 0; i < batch; ++i)
    run.submit(front, request_of(front.model()->vocab_size, 16, tokens, salt * 1000 + i));
  run.wait();
  return run.decode_rate();
}

head_config configure(const std::string& model, uint32_t threads, const std::string& profile, const schedule& cut) {
  head_config config;
  config.settings.model = model;
  config.settings.nodes = 1;
  config.settings.redundant_replicas = 0;
  config.settings.threads_per_node = threads;
  config.settings.schedule = cut;
  config.settings.rows_max = 512;
  config.settings.chunk = 512;
  config.model_name = "bench";
  if (profile != "auto") {
    config.choose_profile = false;
    config.settings.profile = *kernels::profile_from_name(profile);
    if (config.settings.profile == kernels::profile::amx_bf16)
      config.settings.dispatch = config.settings.combine = wire_dtype::bf16;
  }
  return config;
}

// The rates of one kind of work, run by run.
struct rates {
  std::string name;
  std::vector<double> served;
  std::vector<double> looped;  // in the plain loop; empty without --loop
};

void print(std::vector<rates>& all) {
  std::printf("%-18s %12s %12s %12s", "tokens/s", "median", "least", "most");
  std::printf(all.front().looped.empty() ? "\n" : " %12s %22s\n", "plain loop", "ratio (95 % interval)");
  for (auto& one : all) {
    std::vector<double> ratios;
    for (size_t i = 0; i < one.looped.size(); ++i) ratios.push_back(one.served[i] / one.looped[i]);
    std::sort(one.served.begin(), one.served.end());
    std::printf("%-18s %12.1f %12.1f %12.1f", one.name.c_str(), one.served[one.served.size() / 2], one.served.front(),
                one.served.back());
    if (!ratios.empty()) {
      std::sort(one.looped.begin(), one.looped.end());
      const auto [mean, half] = mean_of(ratios);
      std::printf(" %12.1f %15.3f +- %.3f", one.looped[one.looped.size() / 2], mean, half);
    }
    std::printf("\n");
  }
}

struct bench_options {
  std::vector<int> prompts{512, 2048};
  std::vector<int> batches{1, 8, 32, 64};
  int runs = 5;
  bool loop = false;
};

// Collects what a plain loop needs of the weights that the head has loaded.
void share_weights(const loaded_weights& loaded, plain_loop_weights& shared) {
  shared.config = *loaded.config;
  shared.shard = loaded.shard;
  const auto experts = static_cast<size_t>(loaded.config->n_routed_experts);
  shared.experts.resize(static_cast<size_t>(loaded.config->num_hidden_layers) * experts);
  for (const auto& hosted : loaded.experts) shared.experts[hosted.layer * experts + hosted.expert] = hosted.weights;
}

int bench(head_config config, const bench_options& options) {
  const auto begin = bench_clock::now();
  const int threads = static_cast<int>(config.settings.threads_per_node);
  const auto profile = config.choose_profile ? kernels::best_profile() : config.settings.profile;
  plain_loop_weights weights;
  head_callbacks callbacks;
  if (options.loop) callbacks.on_loaded = [&](const loaded_weights& loaded) { share_weights(loaded, weights); };
  auto front = head::start(std::move(config), std::move(callbacks));
  if (!front) {
    std::fprintf(stderr, "bench_serving: %s\n", front.failure().message.c_str());
    return 1;
  }
  while (!(*front)->serving()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  std::printf("ready after %.2f s, %s\n", seconds_since(begin), (*front)->board().nodes.front().device.c_str());
  std::unique_ptr<plain_loop> loop;
  if (options.loop) loop = std::make_unique<plain_loop>(std::move(weights), profile, threads);
  std::vector<rates> all;
  // Whoever goes first in one run goes second in the next.
  const auto measure = [&](const std::string& name, bool loop_first, auto serve, auto in_loop) {
    auto found = std::find_if(all.begin(), all.end(), [&](const rates& one) { return one.name == name; });
    if (found == all.end()) found = all.insert(all.end(), {name, {}, {}});
    if (loop != nullptr && loop_first) found->looped.push_back(in_loop());
    found->served.push_back(serve());
    if (loop != nullptr && !loop_first) found->looped.push_back(in_loop());
    if (loop != nullptr)
      std::fprintf(stderr, "%s: %.1f, plain loop %.1f, ratio %.3f\n", name.c_str(), found->served.back(),
                   found->looped.back(), found->served.back() / found->looped.back());
  };
  constexpr int prompt_tokens = 16, decoded_tokens = 48;
  measure_prefill(**front, 64, 99);
  for (int run = 0; run < options.runs; ++run) {
    const auto salt = static_cast<uint32_t>(run);
    for (const int tokens : options.prompts)
      if (tokens < (*front)->model()->max_position_embeddings)
        measure(
            "prefill " + std::to_string(tokens), run % 2 == 1,
            [&] { return measure_prefill(**front, static_cast<uint32_t>(tokens), salt); },
            [&] { return tokens / loop->prefill(tokens); });
    for (const int batch : options.batches)
      measure(
          "decode batch " + std::to_string(batch), run % 2 == 1,
          [&] { return measure_decode(**front, static_cast<uint32_t>(batch), decoded_tokens, salt); },
          [&] { return batch * decoded_tokens / loop->decode(batch, prompt_tokens, decoded_tokens); });
  }
  print(all);
  return 0;
}

}  // namespace
}  // namespace troupe

int main(int count, char** arguments) {
  spdlog::set_level(spdlog::level::warn);
  CLI::App app{"Tokens a second through the actors, in one process"};
  std::string model;
  std::string profile = "auto";
  bool make = false;
  bool fp8 = false;
  troupe::bench_model made;
  bool start = false;
  uint32_t threads = 2;
  std::string schedule_name = "serial";
  troupe::bench_options options;
  app.add_option("--model", model, "Model directory")->required();
  auto* making = app.add_flag("--make-bench-1b", make, "Write bench-1b (2.6 GB) into the model directory first");
  app.add_flag("--fp8", fp8, "Write it with FP8 weights (1.3 GB)")->needs(making);
  app.add_option("--top-k", made.top_k, "Write it with so many wider experts a token, of 8 times as many")
      ->needs(making)
      ->capture_default_str()
      ->check(CLI::IsMember({1, 2, 4, 8}));
  app.add_flag("--balanced", made.balanced, "Write it so that every token takes one of each eight experts")
      ->needs(making);
  app.add_flag("--start", start, "Measure the start instead: time to the first token beside reading and copying");
  app.add_flag("--loop", options.loop, "Run the same kernels in a plain loop in turns, and print the ratio");
  app.add_option("--profile", profile, "auto, f32 or amx_bf16")->capture_default_str();
  app.add_option("--threads", threads, "Compute threads")->capture_default_str();
  app.add_option("--schedule", schedule_name, "A shipped schedule's name, or a YAML file")->capture_default_str();
  app.add_option("--prompts", options.prompts, "Lengths of prompts")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--batches", options.batches, "Streams that decode together")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(1, 512));
  app.add_option("--runs", options.runs, "Runs; medians are printed")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, count, arguments);
  made.weights = fp8 ? troupe::bench_weights::fp8 : troupe::bench_weights::bf16;
  if (make)
    if (auto written = troupe::write_bench_1b(model, made); !written) {
      std::fprintf(stderr, "bench_serving: %s\n", written.failure().message.c_str());
      return 1;
    }
  const auto cut = troupe::find_schedule(schedule_name, ".");
  if (!cut) {
    std::fprintf(stderr, "bench_serving: %s\n", cut.failure().message.c_str());
    return 2;
  }
  auto config = troupe::configure(model, threads, profile, *cut);
  return start ? troupe::bench_start(config, options.runs) : troupe::bench(std::move(config), options);
}
