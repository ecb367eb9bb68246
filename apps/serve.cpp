#include <spdlog/spdlog.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "apps/cluster/child_processes.hpp"
#include "apps/cluster/cluster_documents.hpp"
#include "apps/cluster/head.hpp"
#include "apps/commands.hpp"
#include "apps/http/server.hpp"
#include "apps/process_signals.hpp"
#include "runtime/placement/load_files.hpp"

namespace troupe {

namespace {

struct serve_options {
  std::string config;
  int port = -1;  // -1: the configuration's
  std::string port_file;
  std::string api_key;
  std::string api_key_file;
  bool no_spawn = false;
  uint32_t nodes = 0;    // 0: the configuration's
  std::string schedule;  // empty: the configuration's
  std::string trace;
  std::string record_load;
};

constexpr auto tend_period = std::chrono::milliseconds(50);

result<std::string> read_key(const std::string& file) {
  if (file.empty()) return std::string{};
  std::ifstream stream(file);
  std::string key;
  if (!stream || !std::getline(stream, key) || key.empty())
    return error{errc::not_found,
                 "the API key file " + file + " cannot be read or is empty; its first line is the key"};
  return key;
}

// Names weights and arithmetic: servers with equal fingerprints give equal tokens. FNV-1a over the
// model's description and the settings that round.
std::string fingerprint(const head& front) {
  const auto settings = front.board().settings;
  std::ifstream file(settings.model + "/config.json");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  std::error_code ignored;
  text += std::to_string(std::filesystem::file_size(settings.model + "/model.safetensors", ignored));
  text += kernels::name(settings.profile);
  text += name(settings.dispatch);
  text += name(settings.combine);
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  char digits[24];
  std::snprintf(digits, sizeof digits, "fp_%012llx", static_cast<unsigned long long>(hash & 0xffffffffffffULL));
  return digits;
}

// The part of the timeline that a node writes; `join_timelines` puts them together at the end.
std::string trace_part(const std::string& trace, uint32_t node) { return trace + ".node" + std::to_string(node); }

std::vector<std::string> node_arguments(const head& front, uint16_t node, const std::string& trace) {
  std::vector<std::string> arguments{"troupe",
                                     "--log",
                                     std::string(spdlog::level::to_string_view(spdlog::get_level()).data()),
                                     "node",
                                     "--join",
                                     front.config().listen + ":" + std::to_string(front.join_port()),
                                     "--node",
                                     std::to_string(node)};
  if (!trace.empty()) arguments.insert(arguments.end(), {"--trace", trace_part(trace, node)});
  return arguments;
}

void print_invitation(const head& front, uint16_t port, bool asks_for_key) {
  const auto& config = front.config();
  const std::string host = config.http_address == "0.0.0.0" ? "127.0.0.1" : config.http_address;
  const std::string base = "http://" + host + ":" + std::to_string(port) + "/v1";
  const auto board = front.board();
  std::printf("\n%s on %zu nodes, profile %s, dispatch %s, combine %s, schedule %s, placement %s, row-invariant%s\n\n",
              config.model_name.c_str(), board.nodes.size(), std::string(kernels::name(board.settings.profile)).c_str(),
              std::string(name(board.settings.dispatch)).c_str(), std::string(name(board.settings.combine)).c_str(),
              board.settings.schedule.name.c_str(), board.settings.placement.c_str(),
              board.settings.links.empty() ? "" : ", links shaped");
  std::printf("%s\n", render_table(board).c_str());
  std::printf("threads of each node: %u compute, 1 actors, 2 network (CAF), 2 wire (UCX)%s\n",
              board.settings.threads_per_node, "; the head also 1 HTTP");
  std::printf("other nodes join with: troupe node --join %s:%u\n\n", config.listen.c_str(), front.join_port());
  const std::string key = !asks_for_key ? "" : " -H \"Authorization: Bearer $TROUPE_API_KEY\"";
  std::printf(
      "curl -N %s/chat/completions%s -H 'Content-Type: application/json' \\\n"
      "  -d '{\"model\": \"%s\", \"stream\": true, \"messages\": [{\"role\": \"user\", \"content\": \"Tell me of "
      "Moses.\"}]}'\n\n",
      base.c_str(), key.c_str(), config.model_name.c_str());
  std::printf(
      "python3 -c 'import openai\nclient = openai.OpenAI(base_url=\"%s\", api_key=\"%s\")\n"
      "for part in client.chat.completions.create(model=\"%s\", stream=True,\n"
      "    messages=[{\"role\": \"user\", \"content\": \"Tell me of Moses.\"}]):\n"
      "  print(part.choices[0].delta.content or \"\", end=\"\", flush=True)'\n\n",
      base.c_str(), key.empty() ? "none" : "...", config.model_name.c_str());
  std::printf("Ctrl-C ends all processes.\n");
  std::fflush(stdout);
}

class server {
 public:
  explicit server(serve_options options) : options_(std::move(options)) {}

  result<void> run() {
    const process_signals signals;
    auto config = load_head_config(options_.config);
    if (!config) return config.failure();
    if (options_.port >= 0) config->http_port = static_cast<uint16_t>(options_.port);
    if (!options_.api_key_file.empty()) config->api_key_file = options_.api_key_file;
    if (options_.nodes > 0) config->settings.nodes = options_.nodes;
    if (options_.no_spawn) config->spawn_nodes = false;
    if (!options_.schedule.empty()) {
      auto cut = find_schedule(options_.schedule, ".");
      if (!cut) return cut.failure();
      config->settings.schedule = *std::move(cut);
    }
    if (!options_.trace.empty()) {
      if (auto ready = prepare_trace(config->settings.nodes); !ready) return ready;
      config->trace = trace_part(options_.trace, 0);
    }
    const uint32_t nodes = config->settings.nodes;
    if (auto valid = validate(config->settings); !valid) return valid.failure();
    auto key = options_.api_key.empty() ? read_key(config->api_key_file) : result<std::string>(options_.api_key);
    if (!key) return key.failure();

    head_callbacks callbacks;
    callbacks.on_dead = [this](node_id, uint64_t process) { children_.request_kill(static_cast<pid_t>(process)); };
    callbacks.on_released = [this](node_id node) {
      const std::lock_guard lock(mutex_);
      released_.push_back(node.value);
    };
    callbacks.on_ended = [this](const error& reason, node_end how) {
      const std::lock_guard lock(mutex_);
      if (how == node_end::retired)
        retired_ = true;
      else
        failure_ = reason;
    };
    auto front = head::start(*std::move(config), std::move(callbacks));
    if (!front) return front.failure();
    auto outcome = serve(**front, *key, signals);
    if (!options_.trace.empty()) std::printf("\n%s", (*front)->steps_text().c_str());
    if (outcome && !options_.record_load.empty()) outcome = write_recording(**front);
    children_.end();
    front->reset();
    if (options_.trace.empty() || !outcome) return outcome;
    std::vector<std::filesystem::path> parts;
    for (uint32_t node = 0; node < nodes; ++node) parts.emplace_back(trace_part(options_.trace, node));
    if (auto joined = join_timelines(parts, options_.trace); !joined) return joined;
    std::printf("\ntimeline: %s (open it in ui.perfetto.dev or chrome://tracing)\n", options_.trace.c_str());
    return {};
  }

 private:
  // The file must be writable now, not after hours; parts of an earlier run must not be joined in.
  result<void> prepare_trace(uint32_t nodes) {
    if (!std::ofstream(options_.trace))
      return error{errc::not_found,
                   "the timeline cannot be written to " + options_.trace + "; is there such a folder?"};
    std::error_code ignored;
    for (uint32_t node = 0; node < nodes; ++node) std::filesystem::remove(trace_part(options_.trace, node), ignored);
    return {};
  }

  result<void> write_recording(const head& front) {
    const auto load = front.board().load;
    if (!load || load->windows.empty())
      return error{errc::unavailable, "there is no load to record: the cluster did not serve for rebalance.window_ms"};
    if (auto written = write_load(load->history(), options_.record_load); !written) return written;
    std::printf("\nload: %zu windows in %s (troupe place --load %s)\n", load->windows.size(),
                options_.record_load.c_str(), options_.record_load.c_str());
    return {};
  }

  result<void> serve(head& front, const std::string& key, const process_signals& signals) {
    const auto& config = front.config();
    if (config.spawn_nodes)
      for (uint32_t node = 1; node < config.settings.nodes; ++node)
        if (auto started = children_.start(static_cast<uint16_t>(node),
                                           node_arguments(front, static_cast<uint16_t>(node), options_.trace));
            !started)
          return started;
    if (!config.spawn_nodes && config.settings.nodes > 1)
      spdlog::info("waiting for {} nodes: troupe node --join {}:{}", config.settings.nodes - 1, config.listen,
                   front.join_port());
    if (auto ready = wait_until_serving(front, signals); !ready) return ready;
    if (ended_) return {};

    http::http_options options;
    options.address = config.http_address;
    options.port = config.http_port;
    options.api_key = key;
    options.requests_max = config.requests_max;
    options.system_fingerprint = fingerprint(front);
    if (key.empty() && config.http_address != "127.0.0.1" && config.http_address != "::1")
      spdlog::warn("the API at {} is open to the network and asks for no key; set api_key_file", config.http_address);
    auto http = http::http_server::start(std::move(options), front);
    if (!http) return http.failure();
    print_invitation(front, (*http)->port(), !key.empty());
    if (!options_.port_file.empty()) {
      const std::string unfinished = options_.port_file + ".part";
      std::ofstream(unfinished) << (*http)->port() << "\n";
      std::rename(unfinished.c_str(), options_.port_file.c_str());
    }
    while (!ending(front, signals))
      if (auto fine = tend(front); !fine) return fine;
    spdlog::info("ending");
    (*http)->stop();
    return {};
  }

  // Waits a little; returns whether a signal asks to end.
  bool ending(head& front, const process_signals& signals) {
    const auto wish = signals.wait(tend_period);
    if (wish == signal_wish::none || wish == signal_wish::end) return wish == signal_wish::end;
    const bool recording = wish == signal_wish::resume_trace;
    front.record_trace(recording);
    children_.signal(recording ? SIGUSR1 : SIGUSR2);
    return false;
  }

  result<void> wait_until_serving(head& front, const process_signals& signals) {
    size_t shown = 0;
    while (!front.serving()) {
      if (ending(front, signals)) {
        ended_ = true;
        return {};
      }
      if (auto fine = tend(front); !fine) return fine;
      const auto board = front.board();
      size_t live = 0;
      for (const auto& node : board.nodes) live += node.state == "live" ? 1 : 0;
      if (live != shown) std::fprintf(stderr, "%zu of %zu nodes are ready\n", live, board.nodes.size());
      shown = live;
    }
    return {};
  }

  result<void> tend(head& front) {
    bool retired = false;
    {
      const std::lock_guard lock(mutex_);
      for (const uint16_t node : released_) children_.expect_end(node);
      released_.clear();
      if (failure_) return *failure_;
      std::swap(retired, retired_);
    }
    if (retired) front.restart_node();
    return children_.tend();
  }

  serve_options options_;
  child_processes children_;
  std::mutex mutex_;
  std::optional<error> failure_;
  bool retired_ = false;            // the head's own node was declared dead
  std::vector<uint16_t> released_;  // nodes that have been drained
  bool ended_ = false;
};

}  // namespace

int report(const error& failure) {
  std::fprintf(stderr, "troupe: %s\n", failure.message.c_str());
  const bool usage = failure.code == errc::invalid_argument || failure.code == errc::not_found ||
                     failure.code == errc::malformed || failure.code == errc::unsupported;
  return usage ? exit_usage : exit_failed;
}

void add_serve(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<serve_options>();
  auto* command = app.add_subcommand("serve", "Start a cluster on this machine, or the head of a larger one");
  command->add_option("config", options->config, "YAML file (docs/configuration.md)")->required();
  command->add_option("--port", options->port, "HTTP port instead of the configuration's; 0: any free one")
      ->check(CLI::Range(0, 65535));
  command->add_option("--port-file", options->port_file, "Write the HTTP port into this file once requests are served");
  command->add_option("--api-key-file", options->api_key_file,
                      "File whose first line is the API key that clients must send; default: no key");
  command->add_option("--api-key", options->api_key, "The key itself; other users of the machine can see it")
      ->excludes("--api-key-file");
  command->add_option("--nodes", options->nodes, "Number of nodes instead of the configuration's")
      ->check(CLI::Range(1, 256));
  command->add_option(
      "--schedule", options->schedule,
      "Schedule instead of the configuration's: serial, dual_prefill, dual_decode, auto, or a YAML file");
  command->add_option(
      "--trace", options->trace,
      "Write a timeline of every stage and transfer (Chrome trace events, for Perfetto) when the cluster\n"
      "ends, and print where the time of its steps went; SIGUSR2 pauses it, SIGUSR1 goes on");
  command->add_option("--record-load", options->record_load,
                      "Write the rows of each expert, by window and source shard, when the cluster ends (with\n"
                      "rebalance.co_activation also pairs of experts): CSV where the name ends in .csv, else compact;\n"
                      "for troupe place --load");
  command->add_flag("--no-spawn", options->no_spawn, "Do not start the other nodes; wait until they join");
  command->footer(
      "Starts one process a node, prints a table and lines to paste, and serves an OpenAI-compatible API on\n"
      "loopback until Ctrl-C. A node process that dies is started again; no process is left behind.");
  command->callback([options, &exit_code] {
    if (auto outcome = server(*options).run(); !outcome) exit_code = report(outcome.failure());
  });
}

}  // namespace troupe
