#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "apps/commands.hpp"
#include "runtime/placement/evaluation.hpp"
#include "runtime/placement/heat_map.hpp"
#include "runtime/placement/load_files.hpp"
#include "runtime/placement/load_generators.hpp"
#include "runtime/placement/policy_json.hpp"
#include "runtime/placement/policy_registry.hpp"
#include "runtime/placement/report.hpp"
#include "runtime/placement/topology_file.hpp"

namespace troupe {

namespace {

struct place_options {
  std::string load = "drifting";
  std::string topology = "prefill_unit";
  std::vector<std::string> policies = {"linear", "eplb", "eplb_distinct", "incremental"};
  uint32_t merge = 1;
  uint32_t history = 8;
  double decay = 0;
  uint32_t groups = 0;
  uint32_t rows_per_token = 8;
  double expert_mb = 44.040192;
  double move_gb = -1;
  std::string selection = "even";
  std::vector<uint32_t> dead;
  uint32_t timeout_ms = 10'000;
  bool json = false;
  bool csv = false;
  bool list = false;
  std::string heat_map;
  std::string save_load;
  std::string save_map;
};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

result<load_history> find_load(const place_options& options) {
  std::error_code ignored;
  const auto shape = options.load.substr(0, options.load.find(':'));
  const bool file = std::filesystem::exists(options.load, ignored) || shape.find_first_of("./") != std::string::npos;
  if (file) return read_load(options.load);
  const auto settings = parse_generator(options.load);
  if (!settings) return settings.failure();
  return generate_load(*settings);
}

// A file, or the name of one that Troupe ships.
result<placement_topology> find_topology(const std::string& text) {
  std::error_code ignored;
  const auto shipped = "config/topologies/" + text + ".yaml";
  const bool plain = text.find_first_of("./") == std::string::npos && !std::filesystem::exists(text, ignored);
  return read_topology(plain ? shipped : text);
}

result<void> write_text(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) return error{errc::internal, "'" + path + "' cannot be written"};
  return {};
}

result<evaluation_settings> settings_from(const place_options& options, const load_history& load,
                                          const placement_topology& topology) {
  evaluation_settings settings;
  settings.history = options.history;
  settings.selection = *replica_selection_from_name(options.selection);
  settings.limits.decay = options.decay;
  // DeepSeek-V3's 256 experts are in 8 groups; where that does not divide there are none.
  settings.limits.expert_groups = options.groups > 0 ? options.groups : load.experts % 8 == 0 ? 8 : 1;
  settings.limits.rows_per_token = options.rows_per_token;
  settings.limits.expert_bytes = static_cast<uint64_t>(options.expert_mb * 1e6);
  if (options.move_gb >= 0) settings.limits.move_bytes_max = static_cast<uint64_t>(options.move_gb * 1e9);
  if (load.experts % settings.limits.expert_groups != 0)
    return error{errc::invalid_argument, "--groups " + std::to_string(settings.limits.expert_groups) +
                                             " does not divide the " + std::to_string(load.experts) + " experts"};
  if (!options.dead.empty()) settings.liveness.live.assign(topology.devices.size(), true);
  for (const uint32_t device : options.dead) {
    if (device >= topology.devices.size())
      return error{errc::invalid_argument, "--dead " + std::to_string(device) + ": the topology has devices 0 to " +
                                               std::to_string(topology.devices.size() - 1)};
    settings.liveness.live[device] = false;
  }
  settings.seconds = seconds_now;
  return settings;
}

// With several policies, NAME.svg becomes NAME.2.svg for the third.
std::string numbered(const std::string& path, size_t number, size_t count) {
  if (count == 1) return path;
  const std::filesystem::path whole(path);
  return (whole.parent_path() / (whole.stem().string() + "." + std::to_string(number) + whole.extension().string()))
      .string();
}

result<void> write_files(const place_options& options, const place_subject& subject,
                         const std::vector<evaluation>& judged) {
  for (size_t i = 0; i < judged.size(); ++i) {
    if (!options.heat_map.empty()) {
      const std::vector<heat_panel> panels = {{"linear", judged[i].rows_before},
                                              {judged[i].policy, judged[i].rows_after}};
      const auto svg = heat_map_svg("Rows of each device and layer in the last window: " + subject.load, panels,
                                    subject.layers, subject.devices);
      if (auto written = write_text(numbered(options.heat_map, i, judged.size()), svg); !written) return written;
    }
    if (!options.save_map.empty())
      if (auto written = write_text(numbered(options.save_map, i, judged.size()), to_json_line(judged[i].last) + "\n");
          !written)
        return written;
  }
  return {};
}

void print_policies(const policy_registry& registry) {
  for (const auto& entry : registry.entries()) std::printf("%-14s %s\n", entry.name.c_str(), entry.about.c_str());
  std::printf("%-14s %s\n", "program:CMD", "any program that reads a JSON line and writes one (docs/policies.md)");
}

result<void> run_place(const place_options& options) {
  auto registry = shipped_policies();
  registry.programs.timeout_ms = options.timeout_ms;
  if (options.list) {
    print_policies(registry);
    return {};
  }
  // Policies first: a mistyped name should not wait for a large file.
  std::vector<placement_policy> policies;
  for (const auto& text : options.policies) {
    auto policy = registry.make(text);
    if (!policy) return policy.failure();
    policies.push_back(std::move(*policy));
  }
  auto load = find_load(options);
  if (!load) return load.failure();
  if (options.merge > 1) *load = merge_windows(*load, options.merge);
  if (!options.save_load.empty())
    if (auto written = write_load(*load, options.save_load); !written) return written;
  const auto topology = find_topology(options.topology);
  if (!topology) return topology.failure();
  auto settings = settings_from(options, *load, *topology);
  if (!settings) return settings.failure();
  if (auto valid = validate({*load, *topology, settings->liveness, nullptr, settings->limits}); !valid)
    return valid.failure();
  settings->bounds = window_bounds(*load, *topology, *settings);
  const auto slots = usable_slots({*load, *topology, settings->liveness, nullptr, settings->limits});
  const place_subject subject{options.load,
                              topology->name,
                              load->layers,
                              load->experts,
                              std::accumulate(slots.begin(), slots.end(), uint64_t{0}),
                              slots.size(),
                              load->windows.size(),
                              options.selection};
  const bool progress = isatty(STDERR_FILENO) == 1;
  std::vector<evaluation> judged;
  for (size_t i = 0; i < policies.size(); ++i) {
    if (progress) std::fprintf(stderr, "\r\033[K%s (%zu of %zu)", options.policies[i].c_str(), i + 1, policies.size());
    auto made = evaluate(options.policies[i], policies[i], *load, *topology, *settings);
    if (progress) std::fprintf(stderr, "\r\033[K");
    if (!made) return made.failure();
    judged.push_back(std::move(*made));
  }
  const auto text = options.json  ? place_json(subject, judged)
                    : options.csv ? place_csv(judged)
                                  : place_table(subject, judged);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return write_files(options, subject, judged);
}

}  // namespace

void add_place(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<place_options>();
  auto* command = app.add_subcommand("place", "Judge expert placement policies on a load, without a cluster");
  command
      ->add_option("--load", options->load,
                   "A file (CSV, JSON, .npy, SGLang's .pt, or --save-load's), or a made-up load SHAPE[:key=value,...]: "
                   "uniform, zipf, log_normal, drifting, bursts, domains")
      ->capture_default_str();
  command->add_option("--topology", options->topology, "A YAML file, or one of config/topologies by its name")
      ->capture_default_str();
  command->add_option("--policy", options->policies, "A policy NAME[:key=value,...] or program:COMMAND; any number")
      ->capture_default_str()
      ->allow_extra_args(false);
  command->add_flag("--list-policies", options->list, "List policies with their settings, and end");
  command->add_option("--merge", options->merge, "Windows (or recorded steps) that are added up to one")
      ->check(CLI::Range(1U, 1'000'000U))
      ->capture_default_str();
  command->add_option("--history", options->history, "Windows that a policy sees")
      ->check(CLI::Range(1U, 1'000'000U))
      ->capture_default_str();
  command
      ->add_option("--decay", options->decay, "Weight of a window relative to the next newer one; 0: the newest alone")
      ->check(CLI::Range(0.0, 0.999999))
      ->capture_default_str();
  command->add_option("--groups", options->groups, "Routing groups of a layer; 0: 8 where that divides the experts")
      ->capture_default_str();
  command->add_option("--rows-per-token", options->rows_per_token, "Experts that a token chooses in a layer")
      ->check(CLI::Range(1U, 65'534U))
      ->capture_default_str();
  command->add_option("--expert-mb", options->expert_mb, "Weights of one expert, in MB")
      ->check(CLI::Range(0.000001, 1e6))
      ->capture_default_str();
  command
      ->add_option("--move-gb", options->move_gb,
                   "GB that a plan may load, for policies that heed it; default: no limit")
      ->check(CLI::Range(0.0, 1e9));
  command->add_option("--selection", options->selection, "Which replica serves a row: even, nearest, weighted or first")
      ->check(CLI::IsMember({"even", "nearest", "weighted", "first"}))
      ->capture_default_str();
  command->add_option("--dead", options->dead, "Devices that hold nothing, as in 3,17")->delimiter(',');
  command->add_option("--program-timeout-ms", options->timeout_ms, "Time that a policy program has for a plan")
      ->check(CLI::Range(1U, 3'600'000U))
      ->capture_default_str();
  auto* json = command->add_flag("--json", options->json, "Print JSON: means and every plan");
  command->add_flag("--csv", options->csv, "Print CSV: a line for each policy and plan")->excludes(json);
  command->add_option(
      "--heat-map", options->heat_map,
      "Write devices x layers before and after as SVG; with several policies FILE.0.svg, FILE.1.svg, ...");
  command->add_option("--save-load", options->save_load,
                      "Write the load: CSV where the name ends in .csv, else binary");
  command->add_option("--save-map", options->save_map, "Write the last map as JSON, for `static` (numbered as above)");
  command->footer(
      "Each plan is made from the windows so far and judged on the next one. All policies start from `linear`.\n"
      "\n"
      "  troupe place --policy eplb --policy incremental --load drifting:memory=0.95\n"
      "  troupe place --topology decode_unit --load log_normal:sigma=1.0 --policy eplb --policy search\n"
      "  troupe place --load recording.pt --merge 100 --policy 'program:python3 examples/policy/my_policy.py'\n"
      "\n"
      "docs/policies.md: every column, file and setting; examples/policy: how to write a policy.");
  command->callback([options, &exit_code] {
    auto outcome = run_place(*options);
    if (!outcome) {
      exit_code = report(outcome.failure());
    }
  });
}

}  // namespace troupe
