#include <algorithm>
#include <cstdio>
#include <memory>
#include <new>

#include "apps/bench/operators.hpp"
#include "apps/commands.hpp"

namespace troupe {

namespace {

struct bench_options {
  std::string model;
  std::string profile = "auto";
  int threads = 1;
  int runs = 5;
  int context = 16;
  std::vector<int> prompts{512};
  std::vector<int> batches{1, 8, 32, 64};
  bool operators = false;
};

void print_rates(plain_loop& loop, const bench_options& options) {
  std::printf("%-18s %10s %10s %10s\n", "tokens/s", "median", "least", "most");
  const auto print = [&](const char* name, int size, auto rate) {
    std::vector<double> rates;
    for (int run = 0; run < options.runs; ++run) rates.push_back(rate());
    std::sort(rates.begin(), rates.end());
    const std::string label = name + std::to_string(size);
    std::printf("%-18s %10.1f %10.1f %10.1f\n", label.c_str(), rates[rates.size() / 2], rates.front(), rates.back());
    std::fflush(stdout);
  };
  for (const int tokens : options.prompts) print("prefill ", tokens, [&] { return tokens / loop.prefill(tokens); });
  for (const int batch : options.batches) {
    const int steps = batch == 1 ? 48 : 24;
    print("decode batch ", batch, [&] { return batch * steps / loop.decode(batch, options.context, steps); });
  }
}

void print_operators(plain_loop& loop, const bench_options& options) {
  const auto print = [&](const std::string& title, const operator_shape& shape) {
    std::printf("%s\n%s\n", title.c_str(), to_table(measure_operators(loop, shape)).c_str());
    std::fflush(stdout);
  };
  for (const int tokens : options.prompts)
    print("prefill " + std::to_string(tokens), {.prompt = tokens, .steps = options.runs});
  for (const int batch : options.batches)
    print("decode batch " + std::to_string(batch) + ", " + std::to_string(options.context) + " positions",
          {.batch = batch, .context = options.context});
}

void print(plain_loop& loop, const bench_options& options) {
  std::printf("%s, compute threads: %d\n", std::string(loop.math().description()).c_str(), options.threads);
  if (options.operators)
    print_operators(loop, options);
  else
    print_rates(loop, options);
}

int run_bench(const bench_options& options) {
  const auto profile =
      options.profile == "auto" ? kernels::best_profile() : *kernels::profile_from_name(options.profile);
  if (profile == kernels::profile::amx_bf16 && !kernels::cpu_features::detect().amx_bf16())
    return report(
        {errc::invalid_argument, "--profile amx_bf16 needs AMX, or AVX-512 with BF16 products; use f32 here"});
  auto loop = plain_loop::load(options.model, profile, options.threads);
  if (!loop) return report(loop.failure());
  try {
    print(**loop, options);
  } catch (const std::bad_alloc&) {
    return report({errc::exhausted, "this machine has not enough memory for such a context in so many sequences"});
  }
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<bench_options>();
  auto* command = app.add_subcommand("bench", "Time a model's operators on this machine, without actors");
  command->add_option("--model", options->model, "Model directory")->required();
  command->add_flag("--operators", options->operators,
                    "A table of each operator's time, bytes and FLOP, and its share of this machine's limit");
  command->add_option("--prompts", options->prompts, "Lengths of prompts")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--batches", options->batches, "Sequences that decode together")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(1, 512));
  command->add_option("--context", options->context, "Positions before the first decoded token")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20));
  command->add_option("--threads", options->threads, "Compute threads")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  command->add_option("--profile", options->profile, "auto, f32 or amx_bf16")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "f32", "amx_bf16"}));
  command->add_option("--runs", options->runs, "Runs; medians are printed")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  command->footer(
      "`limit` is the longer of two times over the operator's: that in which a plain reader with as many threads "
      "reads\n"
      "the same bytes in the same order (measured between the steps, so that caches count), and that in which the\n"
      "operations take place in registers. Example: troupe bench --model DIR --operators --batches 1 --threads 2");
  command->callback([options, &exit_code] { exit_code = run_bench(*options); });
}

}  // namespace troupe
