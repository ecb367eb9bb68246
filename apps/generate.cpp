#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include <condition_variable>
#include <cstdio>
#include <mutex>

#include "apps/cluster/head.hpp"
#include "apps/commands.hpp"

namespace troupe {

namespace {

struct generate_options {
  std::string model;
  std::string prompt;
  bool chat = false;
  uint32_t max_tokens = 128;
  float temperature = 0;
  float top_p = 1;
  int64_t seed = 0;
  std::string profile = "auto";
  uint32_t threads = 1;
  bool json = false;
};

class generation {
 public:
  explicit generation(bool json) : json_(json) {}

  // Prints what arrives; called on the runtime's threads.
  void hear(generation_event event) {
    const std::lock_guard lock(mutex_);
    if (auto* delta = std::get_if<generation_delta>(&event)) {
      text_ += delta->text;
      tokens_.insert(tokens_.end(), delta->tokens.begin(), delta->tokens.end());
      if (!json_) {
        std::fwrite(delta->text.data(), 1, delta->text.size(), stdout);
        std::fflush(stdout);
      }
    } else if (auto* failed = std::get_if<generation_failed>(&event)) {
      failure_ = failed->cause;
      ended_ = true;
    } else if (auto* finished = std::get_if<generation_finished>(&event)) {
      stopped_ = finished->reason == finish_reason::stop;
      ended_ = true;
    }
    changed_.notify_all();
  }

  result<void> wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_; });
    if (failure_) return *failure_;
    return {};
  }

  void fail(const error& reason) { hear(generation_failed{reason}); }

  void print_end() const {
    if (!json_) {
      std::printf("\n");
      return;
    }
    const nlohmann::json document{
        {"text", text_}, {"tokens", tokens_}, {"finish_reason", stopped_ ? "stop" : "length"}};
    std::printf("%s\n", document.dump().c_str());
  }

 private:
  const bool json_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string text_;
  std::vector<int32_t> tokens_;
  std::optional<error> failure_;
  bool ended_ = false;
  bool stopped_ = false;
};

result<void> run_generate(const generate_options& options) {
  head_config config;
  config.settings.model = options.model;
  config.settings.nodes = 1;
  config.settings.redundant_replicas = 0;
  config.settings.threads_per_node = options.threads;
  config.model_name = options.model;
  if (options.profile != "auto") {
    const auto profile = kernels::profile_from_name(options.profile);
    if (!profile)
      return error{errc::invalid_argument, "--profile is '" + options.profile + "'; it may be auto, f32 or amx_bf16"};
    config.choose_profile = false;
    config.settings.profile = *profile;
    if (*profile == kernels::profile::amx_bf16) config.settings.dispatch = config.settings.combine = wire_dtype::bf16;
  }
  if (auto valid = validate(config.settings); !valid) return valid.failure();
  generation output(options.json);
  head_callbacks callbacks;
  callbacks.on_ended = [&output](const error& reason, node_end) { output.fail(reason); };
  auto front = head::start(std::move(config), std::move(callbacks));
  if (!front) return front.failure();
  generation_request request;
  if (options.chat)
    request.messages.push_back({"user", options.prompt, {}});
  else
    request.prompt = options.prompt;
  request.max_tokens = options.max_tokens;
  request.temperature = options.temperature;
  request.top_p = options.top_p;
  request.seed = static_cast<uint64_t>(options.seed);
  (*front)->submit(std::move(request), [&output](generation_event event) { output.hear(std::move(event)); });
  auto outcome = output.wait();
  if (outcome) output.print_end();
  return outcome;
}

}  // namespace

void add_generate(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<generate_options>();
  auto* command = app.add_subcommand("generate", "Complete one prompt in this process, without a network");
  command->add_option("prompt", options->prompt, "Text to continue, or what the user says with --chat")->required();
  command->add_option("--model", options->model, "Model directory: config.json, tokenizer.json, safetensors")
      ->required();
  command->add_flag("--chat", options->chat, "Apply the model's chat template");
  command->add_option("--max-tokens", options->max_tokens, "Tokens to generate at most")->capture_default_str();
  command->add_option("--temperature", options->temperature, "0 is greedy")
      ->check(CLI::Range(0.0F, 2.0F))
      ->capture_default_str();
  command->add_option("--top-p", options->top_p, "Sample from the most probable tokens that make up this share")
      ->check(CLI::Range(0.0F, 1.0F))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Equal seeds give equal text")->capture_default_str();
  command->add_option("--profile", options->profile, "Numeric profile: auto, f32 or amx_bf16")->capture_default_str();
  command->add_option("--threads", options->threads, "Compute threads")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print one JSON object with text, token ids and finish_reason");
  command->callback([options, &exit_code] {
    if (spdlog::get_level() == spdlog::level::info) spdlog::set_level(spdlog::level::warn);
    if (auto outcome = run_generate(*options); !outcome) exit_code = report(outcome.failure());
  });
}

}  // namespace troupe
