// What `troupe serve` reads from YAML, and the sentences for what it refuses.
#include "apps/cluster/head_config.hpp"

#include <doctest/doctest.h>

#include <fstream>

#include "tests/small_model.hpp"

namespace troupe::testing {

namespace {

result<head_config> load(const std::string& lines) {
  const temporary_directory directory;
  const auto file = directory.path() / "cluster.yaml";
  std::ofstream(file) << "model: somewhere\nnodes: 4\n" << lines;
  return load_head_config(file);
}

std::string refusal(const std::string& lines) {
  const auto config = load(lines);
  return config ? "" : config.failure().message;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("links are read as a list of maps; what is left out is any node, or zero") {
  const auto config = load(
      "links:\n"
      "  - {latency_us: 50, bandwidth_mb_s: 1250, jitter_us: 5}\n"
      "  - {from: 0, to: 3, latency_us: 2000.5}\n"
      "  - from: 3\n"
      "    bandwidth_mb_s: 12.5\n");
  REQUIRE(config);
  const std::vector<link_rule> expected = {{-1, -1, {.latency_us = 50, .bandwidth_mb_s = 1250, .jitter_us = 5}},
                                           {0, 3, {.latency_us = 2000.5}},
                                           {3, -1, {.bandwidth_mb_s = 12.5}}};
  CHECK(config->settings.links == expected);
  const auto none = load("");
  REQUIRE(none);
  CHECK(none->settings.links.empty());
}

TEST_CASE("wrong links are refused with the entry and the nearest key") {
  CHECK(contains(refusal("links:\n  - {latency_us: 1}\n  - {latency: 5}\n"),
                 "links, entry 2: there is no setting `latency`; did you mean `latency_us`?"));
  CHECK(contains(refusal("links: {latency_us: 1}\n"), "`links` must be a list"));
  CHECK(contains(refusal("links: [1, 2]\n"), "links, entry 1: "));
  CHECK(contains(refusal("links: [{latency_us: fast}]\n"), "the value of `latency_us` on line 3 cannot be read"));
  CHECK(contains(refusal("links: [{from: 4}]\n"), "from is 4; it must be a node from 0 to 3"));
  CHECK(contains(refusal("links: [{bandwidth_mb_s: .nan}]\n"), "bandwidth_mb_s"));
  CHECK(contains(refusal("link: []\n"), "did you mean `links`?"));
}

TEST_CASE("rebalance is a map of its own settings, and names a policy that there is") {
  const auto config = load(
      "nodes_max: 6\nselection: weighted\nprefill_balancer: random:seed=4\n"
      "rebalance:\n  policy: incremental:aim=0.3\n  period_ms: 5000\n  imbalance: 1.25\n  redundant_per_layer: 8\n"
      "  bandwidth_mb_s: 12.5\n  move_mb_max: 64\n  by_source: false\n  co_activation: true\n");
  REQUIRE(config);
  const auto& settings = config->settings;
  CHECK(settings.nodes_limit() == 6);
  CHECK(settings.selection == replica_selection::weighted);
  CHECK(settings.prefill_balancer == "random:seed=4");
  CHECK(settings.rebalance.policy == "incremental:aim=0.3");
  CHECK(settings.rebalance.imbalance == 1.25);
  CHECK(settings.rebalance.redundant_per_layer == 8);
  CHECK(settings.rebalance.co_activation);
  CHECK(settings.sources() == 0);
  CHECK(load("nodes_max: 6\nshards_per_node: 2\n")->settings.sources() == 12);
  CHECK(load("")->settings.rebalance == rebalance_settings{});
}

TEST_CASE("wrong settings of balancers are refused with the nearest name or the range") {
  CHECK(contains(refusal("rebalance: {polcy: eplb}\n"),
                 "rebalance: there is no setting `polcy`; did you mean `policy`?"));
  CHECK(contains(refusal("rebalance: {policy: elpb}\n"), "there is no placement policy 'elpb'; did you mean 'eplb'?"));
  CHECK(contains(refusal("rebalance: {policy: eplb, window_ms: 1}\n"), "window_ms is 1; it must be between 20"));
  CHECK(contains(refusal("rebalance: {decay: .nan}\n"), "rebalance: decay is"));
  CHECK(contains(refusal("rebalance: {imbalance: 0.5}\n"), "must be above 1"));
  CHECK(contains(refusal("selection: heaviest\n"), "it may be first, nearest, even or weighted"));
  CHECK(contains(refusal("prefill_balancer: roundrobin\n"), "did you mean 'round_robin'?"));
  CHECK(contains(refusal("decode_balancer: gone\n"), "there is no decode balancer 'gone'"));
  CHECK(contains(refusal("rebalance: {policy: 'program:'}\n"), "needs a command"));
}

TEST_CASE("transports are UCX's list, and may be empty") {
  CHECK(load("")->settings.transports == "posix,cma,tcp");
  CHECK(load("transports: tcp\n")->settings.transports == "tcp");
  CHECK(load("transports: \"\"\n")->settings.transports.empty());
  CHECK(load("transports:\n")->settings.transports.empty());
  CHECK(contains(refusal("transports: \"tcp; reboot\"\n"), "transports is 'tcp; reboot'"));
}

}  // namespace troupe::testing
