#include <caf/io/all.hpp>

#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>

#include "apps/cluster/head.hpp"
#include "apps/cluster/join.hpp"
#include "apps/commands.hpp"

namespace troupe {

namespace {

struct drain_options {
  std::string join;
  uint16_t node = 0;
  int patience_s = 10;
};

// What the coordinator says.
result<drain_answer> ask(const drain_options& options) {
  const auto address = parse_join_address(options.join);
  if (!address) return address.failure();
  const auto config = make_system_config(true);
  caf::actor_system system(*config);
  const auto coordinator = reach_coordinator(system, *address, options.patience_s);
  if (!coordinator) return coordinator.failure();
  caf::scoped_actor self(system);
  std::optional<drain_answer> heard;
  self->send(*coordinator, drain_request{node_id{options.node}, caf::actor_cast<caf::strong_actor_ptr>(self)});
  self->receive([&](const drain_answer& answer) { heard = answer; },
                caf::after(std::chrono::seconds(options.patience_s)) >> [] {});
  if (!heard) return error{errc::unavailable, "the head at " + options.join + " does not answer"};
  return *heard;
}

int run_drain(const drain_options& options) {
  const auto answer = ask(options);
  if (!answer) return report(answer.failure());
  std::fprintf(answer->accepted ? stdout : stderr, "%s%s\n",
               answer->accepted ? "" : "troupe: ", answer->message.c_str());
  return answer->accepted ? 0 : exit_refused;
}

}  // namespace

void add_drain(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<drain_options>();
  auto* command =
      app.add_subcommand("drain", "Move everything away from a node of a running cluster; its process ends");
  command->add_option("--join", options->join, "HOST:PORT of the head, as `troupe serve` prints it")->required();
  command->add_option("--node", options->node, "Number of the node")->required()->check(CLI::Range(0, 255));
  command->add_option("--patience", options->patience_s, "Seconds to wait for the head")->capture_default_str();
  command->footer(
      "The node starts nothing new; its running sequences go on at other shards, and its experts are loaded\n"
      "elsewhere before it is released. No request is lost. /cluster shows the node as `draining` meanwhile.");
  command->callback([options, &exit_code] { exit_code = run_drain(*options); });
}

}  // namespace troupe
