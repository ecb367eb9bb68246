// Live clusters of processes, measured in pairs of interleaved runs.
//
//   bench_cluster tax --model DIR       four processes with a shard each against one process with four
//   bench_cluster overlap --model DIR   schedules over shaped links against the bound of the run
//   bench_cluster trace --model DIR     decoding while `--trace` records and while it is paused
//   bench_cluster rebalance --model DIR time between tokens while experts move, against a cluster where they stay
//
// Both talk to real `troupe serve` processes over HTTP, on this machine's cores. Prompts are token ids.
#define DOCTEST_CONFIG_IMPLEMENT
#include <CLI/CLI.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <sstream>

#include "runtime/accounting/run_bound.hpp"
#include "tests/bench/estimate.hpp"
#include "tests/live/served_cluster.hpp"

namespace troupe {
namespace {

using bench_clock = std::chrono::steady_clock;

struct load {
  std::string name;
  int streams = 32;
  int prompt_tokens = 16;
  int max_tokens = 48;
  double tokens() const { return static_cast<double>(streams) * (max_tokens > 1 ? max_tokens : prompt_tokens); }
};

// Runs a load to its end and returns tokens a second: completion tokens, or prompt tokens of a prefill.
double run(const testing::served_cluster& cluster, const load& what, int salt) {
  std::vector<std::thread> clients;
  std::vector<int> statuses(static_cast<size_t>(what.streams));
  const auto begin = bench_clock::now();
  for (int i = 0; i < what.streams; ++i)
    clients.emplace_back([&, i] {
      std::vector<int> ids;
      uint64_t state = static_cast<uint64_t>(salt) * 1000 + static_cast<uint64_t>(i) + 1;
      for (int j = 0; j < what.prompt_tokens; ++j) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        ids.push_back(static_cast<int>(3 + (state >> 33U) % 400));
      }
      const nlohmann::json body{
          {"prompt", ids}, {"max_tokens", what.max_tokens}, {"temperature", 0}, {"ignore_eos", true}};
      const auto answer = testing::http_call(cluster.port(), "POST", "/v1/completions", body.dump());
      statuses[static_cast<size_t>(i)] = answer ? answer->status : 0;
    });
  for (auto& client : clients) client.join();
  const double seconds = std::chrono::duration<double>(bench_clock::now() - begin).count();
  for (const int status : statuses)
    if (status != 200) {
      std::fprintf(stderr, "bench_cluster: a request ended with HTTP status %d\n", status);
      std::exit(1);
    }
  return what.tokens() / seconds;
}

std::unique_ptr<testing::served_cluster> start(uint32_t nodes, const std::string& lines,
                                               const std::string& trace = "") {
  auto cluster = std::make_unique<testing::served_cluster>(nodes, lines, trace);
  if (cluster->port() != 0) return cluster;
  std::fprintf(stderr, "bench_cluster: the cluster does not start:\n%s\n", cluster->log().c_str());
  std::exit(1);
}

std::string common_lines(const std::string& model, const std::string& profile) {
  return "model: " + model + "\nprofile: " + profile +
         "\nredundant_replicas: 0\nverdict_ms: 20000\ndispatch_deadline_ms: 20000\nrows_max: 512\nchunk: 512\n";
}

void measure_tax(const std::string& model, const std::string& profile, const std::string& schedule, int runs) {
  const auto lines = common_lines(model, profile) + "schedule: " + schedule + "\n";
  const auto one = start(1, lines + "shards_per_node: 4\nthreads_per_node: 2\n");
  const auto four = start(4, lines + "threads_per_node: 1\n");
  const load loads[] = {{"decode, 32 streams", 32, 16, 48}, {"prefill, 8 x 512", 8, 512, 1}};
  std::printf("%-20s %16s %16s %22s\n", "tokens/s", "1 process x 4", "4 processes x 1", "ratio (95 % interval)");
  for (const auto& what : loads) {
    std::vector<double> together, apart, ratios;
    for (int i = -1; i < runs; ++i) {  // the first pair warms up
      const double a = run(*one, what, i);
      const double b = run(*four, what, i);
      if (i < 0) continue;
      together.push_back(a);
      apart.push_back(b);
      ratios.push_back(b / a);
    }
    const auto [ratio, width] = mean_of(ratios);
    std::printf("%-20s %16.1f %16.1f %12.3f +- %.3f\n", what.name.c_str(), mean_of(together).first,
                mean_of(apart).first, ratio, width);
    std::fflush(stdout);
  }
}

void measure_trace(const std::string& model, const std::string& profile, int tokens, int runs) {
  const testing::temporary_directory directory;
  const auto lines = common_lines(model, profile) + "schedule: serial\nthreads_per_node: 1\n";
  const auto cluster = start(2, lines, (directory.path() / "trace.json").string());
  const auto record = [&](bool recording) {
    kill(cluster->process(), recording ? SIGUSR1 : SIGUSR2);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));  // until it is heard, and the list is written out
  };
  const load what{"decode, 32 streams", 32, 16, tokens};
  std::vector<double> without, with, ratios;
  for (int i = -1; i < runs; ++i) {  // the first pair warms up
    double a = 0, b = 0;
    for (const bool recording : {i % 2 != 0, i % 2 == 0}) {
      record(recording);
      (recording ? b : a) = run(*cluster, what, i);
    }
    if (i < 0) continue;
    without.push_back(a);
    with.push_back(b);
    ratios.push_back(a / b);
  }
  const auto [ratio, width] = mean_of(ratios);
  std::printf("%s: %.1f tokens/s, with a trace %.1f; a step takes %.3f +- %.3f times as long\n", what.name.c_str(),
              mean_of(without).first, mean_of(with).first, ratio, width);
}

// Sums of a metric's lines by node.
std::map<std::string, double> metric(const std::string& text, const std::string& name) {
  std::map<std::string, double> by_node;
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    if (!line.starts_with(name + "{")) continue;
    const size_t at = line.find("node=\"") + 6;
    by_node[line.substr(at, line.find('"', at) - at)] += std::stod(line.substr(line.rfind(' ') + 1));
  }
  return by_node;
}

std::map<std::string, run_times> times_of(const testing::served_cluster& cluster) {
  std::this_thread::sleep_for(std::chrono::milliseconds(1200));  // accounts arrive twice a second
  const auto answer = testing::http_call(cluster.port(), "GET", "/metrics");
  const std::string text = answer ? answer->body : "";
  std::map<std::string, run_times> times;
  const auto ns = [](double value) { return static_cast<uint64_t>(value); };
  for (const auto& [node, value] : metric(text, "troupe_layer_compute_ns_total")) times[node].device_ns = ns(value);
  for (auto& [node, one] : times) {
    one.active_ns = one.device_ns;
    for (const char* idle :
         {"troupe_layer_exposed_ns_total", "troupe_layer_bubble_ns_total", "troupe_layer_mailbox_ns_total"})
      one.active_ns += ns(metric(text, idle)[node]);
    one.core_ns = ns(metric(text, "troupe_node_cpu_ns_total")[node]);
    one.link_ns = ns(metric(text, "troupe_node_link_busy_ns_total")[node]);
    one.chain_ns = ns(metric(text, "troupe_node_chain_ns_total")[node]);
  }
  return times;
}

// What a load adds, the largest of each time over the nodes.
run_times spend(const testing::served_cluster& cluster, const load& what, int salt) {
  const auto before = times_of(cluster);
  run(cluster, what, salt);
  run_times sum;
  for (const auto& [node, after] : times_of(cluster)) {
    const auto at = before.find(node);
    sum = slowest(sum, between(at == before.end() ? run_times{} : at->second, after));
  }
  return sum;
}

void measure_overlap(const std::string& model, const std::string& profile, const std::vector<std::string>& which,
                     const std::vector<double>& ratios, int runs) {
  const load loads[] = {{"decode", 64, 16, 32}, {"prefill", 20, 512, 1}};  // as in virtual time
  const auto shaped = [&](const std::string& schedule, double mb_s) {
    return common_lines(model, profile) + "threads_per_node: 1\nschedule: " + schedule +
           "\nlinks: [{latency_us: 20, bandwidth_mb_s: " + std::to_string(mb_s) + "}]\n";
  };
  std::printf("%-8s %6s %-13s %10s %10s %10s %10s %10s %20s\n", "load", "wire", "schedule", "active ms", "device",
              "core", "link", "chain", "reached (95 %)");
  for (const auto& what : loads) {
    if (std::find(which.begin(), which.end(), what.name) == which.end()) continue;
    // How long the stages take, and how many bytes travel over a link.
    constexpr double fast_mb_s = 10000;
    double bytes = 0, device_s = 0;
    {
      const auto cluster = start(2, shaped("serial", fast_mb_s));
      run(*cluster, what, -1);
      const auto times = spend(*cluster, what, 0);
      bytes = static_cast<double>(times.link_ns) * 1e-9 * fast_mb_s * 1e6;
      device_s = static_cast<double>(times.device_ns) * 1e-9;
    }
    for (const double ratio : ratios)
      for (const std::string schedule : {"serial", what.max_tokens > 1 ? "dual_decode" : "dual_prefill"}) {
        const auto cluster = start(2, shaped(schedule, bytes / (ratio * device_s) * 1e-6));
        run(*cluster, what, -1);
        std::vector<double> reached;
        run_times last;
        for (int i = 0; i < runs; ++i) {
          last = spend(*cluster, what, i);
          reached.push_back(100 * last.efficiency());
        }
        const auto ms = [](uint64_t value) { return static_cast<double>(value) * 1e-6; };
        const auto [mean, width] = mean_of(reached);
        std::printf("%-8s %6.1f %-13s %10.0f %10.0f %10.0f %10.0f %10.0f %10.1f %% +- %.1f (%s)\n", what.name.c_str(),
                    ratio, schedule.c_str(), ms(last.active_ns), ms(last.device_ns), ms(last.core_ns), ms(last.link_ns),
                    ms(last.chain_ns), mean, width, last.bound_by());
        std::fflush(stdout);
      }
  }
}

// One streamed completion: appends the times between its tokens, ms. Returns false when it fails.
bool stream_tokens(uint16_t port, const nlohmann::json& body, std::vector<double>& gaps_ms) {
  const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const auto text = body.dump();
  const std::string request = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" +
                              std::string("Content-Type: application/json\r\nContent-Length: ") +
                              std::to_string(text.size()) + "\r\n\r\n" + text;
  bool fine = connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
              send(connection, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size());
  std::string last;  // the end of what came before: a mark may be cut in two
  std::optional<bench_clock::time_point> before;
  bool done = false;
  char part[16384];
  ssize_t got = 0;
  while (fine && (got = recv(connection, part, sizeof part, 0)) > 0) {
    const auto now = bench_clock::now();
    last.append(part, static_cast<size_t>(got));
    for (size_t at = 0; (at = last.find("\nid: ")) != std::string::npos; last.erase(0, at + 5)) {
      if (before) gaps_ms.push_back(std::chrono::duration<double, std::milli>(now - *before).count());
      before = now;
    }
    done = done || last.find("[DONE]") != std::string::npos;
    if (last.size() > 16) last.erase(0, last.size() - 16);
  }
  close(connection);
  return fine && done;
}

struct gap_summary {
  double median_ms = 0;
  double p99_ms = 0;
  double longest_ms = 0;
};

// Streams whose prompts have few tokens, so that some experts are hot; which, differs from run to run.
gap_summary run_hot_streams(const testing::served_cluster& cluster, int run_number) {
  constexpr int streams = 16, max_tokens = 320;
  std::vector<std::vector<double>> gaps(streams);
  std::atomic<bool> fine{true};
  std::vector<std::thread> clients;
  for (int i = 0; i < streams; ++i)
    clients.emplace_back([&, i] {
      std::vector<int> ids;
      for (int j = 0; j < 12; ++j) ids.push_back(3 + run_number * 7 % 400 + (i + j) % 3);
      const nlohmann::json body{{"prompt", ids},     {"max_tokens", max_tokens}, {"temperature", 0},
                                {"logprobs", 1},     {"stream", true},           {"seed", i},
                                {"ignore_eos", true}};
      if (!stream_tokens(cluster.port(), body, gaps[static_cast<size_t>(i)])) fine = false;
    });
  for (auto& client : clients) client.join();
  if (!fine) {
    std::fprintf(stderr, "bench_cluster: a stream failed\n");
    std::exit(1);
  }
  std::vector<double> all;
  for (const auto& one : gaps) all.insert(all.end(), one.begin(), one.end());
  std::sort(all.begin(), all.end());
  const auto part = [&](double of) { return all[static_cast<size_t>(of * static_cast<double>(all.size() - 1))]; };
  return {part(0.5), part(0.99), all.back()};
}

void measure_rebalance(const std::string& model, const std::string& profile, double bandwidth_mb_s, int runs) {
  const auto lines = "model: " + model + "\nprofile: " + profile +
                     "\nverdict_ms: 20000\ndispatch_deadline_ms: 20000\nschedule: serial\nselection: weighted\n";
  const auto still = start(4, lines);
  const auto moving = start(4, lines + "rebalance: {policy: eplb_distinct, window_ms: 500, period_ms: 500, decay: 0, " +
                                   "bandwidth_mb_s: " + std::to_string(bandwidth_mb_s) + "}\n");
  std::vector<double> still_p50, still_p99, moving_p50, moving_p99, ratio_p50, ratio_p99;
  const auto moves = [&] { return moving->cluster()["rebalance"]["moves_done"].get<uint64_t>(); };
  uint64_t before = 0;
  for (int i = -2; i < runs; ++i) {  // the first pairs warm up
    gap_summary a, b;
    if (i % 2 == 0) a = run_hot_streams(*still, i + 2);
    b = run_hot_streams(*moving, i + 2);
    if (i % 2 != 0) a = run_hot_streams(*still, i + 2);
    if (i < 0) {
      before = moves();
      continue;
    }
    std::printf("pair %d: p99 %.1f ms, moving %.1f ms; longest %.1f, moving %.1f\n", i, a.p99_ms, b.p99_ms,
                a.longest_ms, b.longest_ms);
    std::fflush(stdout);
    still_p50.push_back(a.median_ms);
    still_p99.push_back(a.p99_ms);
    moving_p50.push_back(b.median_ms);
    moving_p99.push_back(b.p99_ms);
    ratio_p50.push_back(b.median_ms / a.median_ms);
    ratio_p99.push_back(b.p99_ms / a.p99_ms);
  }
  const auto done = moving->cluster()["rebalance"];
  std::printf("%llu replicas moved during the runs, %.1f MB since the start, %llu failed\n",
              static_cast<unsigned long long>(moves() - before), done["bytes_moved"].get<double>() * 1e-6,
              static_cast<unsigned long long>(done["moves_failed"].get<uint64_t>()));
  std::printf("%-22s %16s %16s %22s\n", "ms between tokens", "experts stay", "experts move", "ratio (95 % interval)");
  const auto line = [](const char* what, const std::vector<double>& a, const std::vector<double>& b,
                       const std::vector<double>& ratios) {
    const auto [mean_a, width_a] = mean_of(a);
    const auto [mean_b, width_b] = mean_of(b);
    const auto [ratio, width] = mean_of(ratios);
    std::printf("%-22s %7.3f +- %.3f  %7.3f +- %.3f  %12.3f +- %.3f\n", what, mean_a, width_a, mean_b, width_b, ratio,
                width);
  };
  line("median", still_p50, moving_p50, ratio_p50);
  line("p99", still_p99, moving_p99, ratio_p99);
}

}  // namespace
}  // namespace troupe

int main(int count, char** arguments) {
  CLI::App app{"Live clusters on this machine, measured in interleaved runs"};
  app.require_subcommand(1);
  std::string model;
  std::string profile = "auto";
  std::string schedule = "auto";
  int runs = 5;
  const auto options = [&](CLI::App* command) {
    command->add_option("--model", model, "Model directory")->required()->check(CLI::ExistingDirectory);
    command->add_option("--profile", profile, "auto, f32 or amx_bf16")->capture_default_str();
    command->add_option("--runs", runs, "Measured runs of each")->capture_default_str()->check(CLI::Range(1, 1000));
  };
  auto* tax = app.add_subcommand("tax", "Four processes with a shard each against one process with four shards");
  options(tax);
  tax->add_option("--schedule", schedule, "Of both")->capture_default_str();
  auto* overlap = app.add_subcommand("overlap", "Serial and dual schedules over shaped links, against their bound");
  options(overlap);
  std::vector<std::string> which{"decode", "prefill"};
  std::vector<double> ratios{0.5, 1.0, 2.0};
  overlap->add_option("--load", which, "decode, prefill")->capture_default_str();
  overlap->add_option("--wire", ratios, "Times of the wire over those of compute")->capture_default_str();
  double bandwidth_mb_s = 100;
  auto* rebalance = app.add_subcommand("rebalance", "Time between tokens while experts move, and while they stay");
  options(rebalance);
  rebalance->add_option("--bandwidth", bandwidth_mb_s, "Of weights that a node takes in, MB/s")->capture_default_str();
  auto* trace = app.add_subcommand("trace", "Two processes that decode, while --trace records and while it is paused");
  options(trace);
  int tokens = 48;
  trace->add_option("--tokens", tokens, "Of a stream in a run")->capture_default_str()->check(CLI::Range(2, 4096));
  CLI11_PARSE(app, count, arguments);
  const auto directory = std::filesystem::absolute(model).string();
  if (*tax) troupe::measure_tax(directory, profile, schedule, runs);
  if (*rebalance) troupe::measure_rebalance(directory, profile, bandwidth_mb_s, runs);
  if (*trace) troupe::measure_trace(directory, profile, tokens, runs);
  if (*overlap) troupe::measure_overlap(directory, profile, which, ratios, runs);
  return 0;
}
