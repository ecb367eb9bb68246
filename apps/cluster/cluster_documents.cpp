#include "apps/cluster/cluster_documents.hpp"

#include <nlohmann/json.hpp>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <vector>

namespace troupe {

namespace {

nlohmann::json counters_json(const node_counters& counters) {
  return {{"steps", counters.steps},
          {"tokens", counters.tokens},
          {"sequences", counters.sequences},
          {"kv_blocks", counters.kv_blocks},
          {"kv_blocks_free", counters.kv_blocks_free},
          {"dispatches_sent", counters.dispatches_sent},
          {"dispatches_resent", counters.dispatches_resent},
          {"rows_received", counters.rows_received},
          {"weight_passes", counters.weight_passes},
          {"device_busy_s", static_cast<double>(counters.device_busy_ns) * 1e-9},
          {"wire_bytes_sent", counters.wire_bytes_sent},
          {"micro_batches", counters.micro_batches},
          {"schedule_switches", counters.schedule_switches},
          {"buffers_in_use", counters.buffers_in_use},
          {"wire_bytes_in_flight", counters.wire_bytes_in_flight},
          {"wire_connections", counters.wire_connections},
          {"wire_reconnections", counters.wire_reconnections},
          {"replicas", counters.replicas},
          {"replica_bytes", counters.replica_bytes},
          {"dispatches_refused", counters.dispatches_refused}};
}

nlohmann::json rebalance_json(const board_rebalance& rebalance) {
  return {{"policy", rebalance.policy},
          {"checks", rebalance.checks},
          {"idle_ms", rebalance.idle_ms},
          {"asking", rebalance.asking},
          {"questions", rebalance.questions},
          {"plans", rebalance.plans},
          {"plans_refused", rebalance.plans_refused},
          {"moves_left", rebalance.moves_left},
          {"moves_done", rebalance.moves_done},
          {"moves_failed", rebalance.moves_failed},
          {"moves_superseded", rebalance.moves_superseded},
          {"bytes_moved", rebalance.bytes_moved},
          {"imbalance", rebalance.imbalance},
          {"balance_before", rebalance.balance_before},
          {"balance_after", rebalance.balance_after},
          {"last_reason", rebalance.last_reason},
          {"last_plan", rebalance.last_plan},
          {"last_failure", rebalance.last_failure}};
}

void add_rebalance_metrics(const board_rebalance& rebalance, prometheus::Registry& registry) {
  const auto counter = [&](const char* name, const char* help, uint64_t number) {
    prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add({}).Increment(static_cast<double>(number));
  };
  const auto gauge = [&](const char* name, const char* help, double number) {
    prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add({}).Set(number);
  };
  counter("troupe_rebalance_checks_total", "Times the expert balancer looked after its work; grows while it lives",
          rebalance.checks);
  gauge("troupe_rebalance_idle_seconds", "Since it last asked the policy, ordered a move or heard of one",
        static_cast<double>(rebalance.idle_ms) * 1e-3);
  gauge("troupe_rebalance_asking", "Whether the policy has been asked and has not answered", rebalance.asking ? 1 : 0);
  counter("troupe_rebalance_questions_total", "Times the policy was asked", rebalance.questions);
  counter("troupe_rebalance_plans_total", "Valid plans", rebalance.plans);
  counter("troupe_rebalance_plans_refused_total", "Failures of the policy, and maps that were refused",
          rebalance.plans_refused);
  gauge("troupe_rebalance_moves_left", "Replicas that are still to be loaded",
        static_cast<double>(rebalance.moves_left));
  counter("troupe_rebalance_moves_done_total", "Replicas loaded", rebalance.moves_done);
  counter("troupe_rebalance_moves_failed_total", "Replicas that could not be loaded", rebalance.moves_failed);
  counter("troupe_rebalance_moves_superseded_total", "Moves given up for those of another plan",
          rebalance.moves_superseded);
  counter("troupe_rebalance_bytes_total", "Weights loaded", rebalance.bytes_moved);
  gauge("troupe_rebalance_imbalance", "Rows of the fullest node over the mean node's, mean over layers",
        rebalance.imbalance);
  gauge("troupe_rebalance_balance_before", "Mean over maximum of the nodes' rows before the last plan",
        rebalance.balance_before);
  gauge("troupe_rebalance_balance_after", "What the last plan promised", rebalance.balance_after);
}

// The objectives of a balancer of sequences: the most loaded shard over the mean.
void add_balance_metrics(const std::string& balancer, const board_balance& balance, prometheus::Registry& registry) {
  const auto gauge = [&](const std::string& name, const std::string& help, double number) {
    prometheus::BuildGauge().Name("troupe_" + balancer + name).Help(help).Register(registry).Add({}).Set(number);
  };
  const bool prefill = balancer == "prefill";
  prometheus::BuildCounter()
      .Name("troupe_" + balancer + "_choices_total")
      .Help("Shards chosen")
      .Register(registry)
      .Add({})
      .Increment(static_cast<double>(balance.choices));
  if (prefill)
    gauge("_imbalance_attention", "Core-attention work of the most loaded shard over the mean",
          balance.imbalance.attention_work);
  gauge("_imbalance_tokens",
        prefill ? "Input tokens of the most loaded shard over the mean" : "KV use of the fullest shard over the mean",
        balance.imbalance.tokens);
  gauge("_imbalance_requests", "Requests of the most loaded shard over the mean", balance.imbalance.requests);
}

std::string megabytes(uint64_t bytes) {
  const uint64_t tenths = bytes * 10 / 1'000'000;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " MB";
}

// Where the time of each layer's steps went (docs/schedules.md).
void add_layer_metrics(const board_snapshot& board, prometheus::Registry& registry) {
  struct layer_metric {
    const char* name;
    const char* help;
    uint64_t layer_account::*field;
  };
  static constexpr std::array metrics{
      layer_metric{"troupe_layer_rows_total", "Rows through attention", &layer_account::rows},
      layer_metric{"troupe_layer_expert_rows_total", "(row, expert) products", &layer_account::expert_rows},
      layer_metric{"troupe_layer_weight_passes_total", "Times an expert's weights were read",
                   &layer_account::weight_passes},
      layer_metric{"troupe_layer_wire_bytes_total", "Bytes delivered, headers included", &layer_account::wire_bytes},
      layer_metric{"troupe_layer_wire_ns_total", "Sum of transfer times", &layer_account::wire_ns},
      layer_metric{"troupe_layer_exposed_ns_total", "Device idle while what it waited for travelled",
                   &layer_account::exposed_ns},
      layer_metric{"troupe_layer_bubble_ns_total", "Device idle while other nodes computed", &layer_account::bubble_ns},
      layer_metric{"troupe_layer_mailbox_ns_total", "Device idle while what it waited for was in a mailbox",
                   &layer_account::mailbox_ns}};
  const auto labels_of = [](const board_node& node, size_t layer) {
    return prometheus::Labels{{"node", std::to_string(node.node)}, {"layer", std::to_string(layer)}};
  };
  for (const auto& metric : metrics) {
    auto& family = prometheus::BuildCounter().Name(metric.name).Help(metric.help).Register(registry);
    for (const auto& node : board.nodes)
      for (size_t layer = 0; layer < node.layers.size(); ++layer)
        family.Add(labels_of(node, layer)).Increment(static_cast<double>(node.layers[layer].*metric.field));
  }
  auto& compute =
      prometheus::BuildCounter().Name("troupe_layer_compute_ns_total").Help("Device time by stage").Register(registry);
  for (const auto& node : board.nodes)
    for (size_t layer = 0; layer < node.layers.size(); ++layer)
      for (size_t kind = 0; kind < stage_kind_count; ++kind) {
        auto labels = labels_of(node, layer);
        labels.emplace("stage", std::string(name(static_cast<stage_kind>(kind))));
        if (const uint64_t ns = node.layers[layer].compute_ns[kind]; ns != 0)
          compute.Add(labels).Increment(static_cast<double>(ns));
      }
}

}  // namespace

std::string render_cluster(const board_snapshot& board, const std::string& model_name) {
  nlohmann::json nodes = nlohmann::json::array();
  for (const auto& node : board.nodes)
    nodes.push_back({{"node", node.node},
                     {"state", node.state},
                     {"incarnation", node.incarnation},
                     {"host", node.host},
                     {"process", node.process},
                     {"device", node.device},
                     {"threads", node.threads},
                     {"shards", node.shards},
                     {"experts", node.experts},
                     {"weight_bytes", node.weight_bytes},
                     {"kv_bytes", node.kv_bytes},
                     {"schedule", node.schedule},
                     {"counters", counters_json(node.counters)}});
  const auto& requests = board.requests;
  return nlohmann::json{{"model", model_name},
                        {"serving", board.serving},
                        {"epoch", board.epoch},
                        {"nodes_lost", board.nodes_lost},
                        {"profile", kernels::name(board.settings.profile)},
                        {"dispatch", name(board.settings.dispatch)},
                        {"combine", name(board.settings.combine)},
                        {"placement", board.settings.placement},
                        {"schedule", board.settings.schedule.name},
                        {"invariance", "on"},
                        {"selection", name(board.settings.selection)},
                        {"rebalance", rebalance_json(board.rebalance)},
                        {"prefill_balancer", board.settings.prefill_balancer},
                        {"decode_balancer", board.settings.decode_balancer},
                        {"nodes", nodes},
                        {"requests",
                         {{"accepted", requests.accepted},
                          {"completed", requests.completed},
                          {"cancelled", requests.cancelled},
                          {"failed", requests.failed},
                          {"resumed", requests.resumed},
                          {"running", requests.running},
                          {"prompt_tokens", requests.prompt_tokens},
                          {"completion_tokens", requests.completion_tokens}}}}
      .dump(2);
}

std::string render_metrics(const board_snapshot& board) {
  prometheus::Registry registry;
  const auto value = [&](const char* name, const char* help, uint64_t number, bool counts) {
    if (counts)
      prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add({}).Increment(
          static_cast<double>(number));
    else
      prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add({}).Set(static_cast<double>(number));
  };
  const auto& requests = board.requests;
  value("troupe_epoch", "Placement epoch that is in force", board.epoch, false);
  value("troupe_nodes_lost_total", "Nodes declared dead", board.nodes_lost, true);
  value("troupe_requests_running", "Requests accepted and not finished", requests.running, false);
  value("troupe_requests_accepted_total", "Requests accepted", requests.accepted, true);
  value("troupe_requests_completed_total", "Requests completed", requests.completed, true);
  value("troupe_requests_cancelled_total", "Requests cancelled by their client", requests.cancelled, true);
  value("troupe_requests_failed_total", "Requests failed with a named cause", requests.failed, true);
  value("troupe_requests_resumed_total", "Times a request moved to another shard", requests.resumed, true);
  value("troupe_prompt_tokens_total", "Prompt tokens of accepted requests", requests.prompt_tokens, true);
  value("troupe_completion_tokens_total", "Tokens committed", requests.completion_tokens, true);

  struct node_metric {
    const char* name;
    const char* help;
    uint64_t node_counters::*field;
    bool counts;
  };
  static constexpr std::array metrics{
      node_metric{"troupe_node_steps_total", "Micro-batches started", &node_counters::steps, true},
      node_metric{"troupe_node_tokens_total", "Tokens sampled", &node_counters::tokens, true},
      node_metric{"troupe_node_sequences", "Sequences held", &node_counters::sequences, false},
      node_metric{"troupe_node_kv_blocks", "KV blocks", &node_counters::kv_blocks, false},
      node_metric{"troupe_node_kv_blocks_free", "KV blocks that are free", &node_counters::kv_blocks_free, false},
      node_metric{"troupe_node_dispatches_sent_total", "Dispatches sent", &node_counters::dispatches_sent, true},
      node_metric{"troupe_node_dispatches_resent_total", "Dispatches sent again to another replica",
                  &node_counters::dispatches_resent, true},
      node_metric{"troupe_node_rows_received_total", "Rows received in dispatches", &node_counters::rows_received,
                  true},
      node_metric{"troupe_node_weight_passes_total", "Times an expert's weights were read",
                  &node_counters::weight_passes, true},
      node_metric{"troupe_node_device_busy_ns_total", "Time the device computed", &node_counters::device_busy_ns, true},
      node_metric{"troupe_node_wire_bytes_sent_total", "Payload bytes sent", &node_counters::wire_bytes_sent, true},
      node_metric{"troupe_node_micro_batches", "Micro-batches that the schedule uses now",
                  &node_counters::micro_batches, false},
      node_metric{"troupe_node_schedule_switches_total", "Times the schedule's choice changed",
                  &node_counters::schedule_switches, true},
      node_metric{"troupe_node_buffers_in_use_bytes", "Data-plane buffers that are referenced",
                  &node_counters::buffers_in_use, false},
      node_metric{"troupe_node_wire_in_flight_bytes", "Payloads handed to the transport and not yet completed",
                  &node_counters::wire_bytes_in_flight, false},
      node_metric{"troupe_node_wire_connections", "Connections to other nodes", &node_counters::wire_connections,
                  false},
      node_metric{"troupe_node_wire_reconnections_total", "Attempts to connect anew after a connection broke",
                  &node_counters::wire_reconnections, true},
      node_metric{"troupe_node_replicas", "Expert replicas held", &node_counters::replicas, false},
      node_metric{"troupe_node_replica_bytes", "Weights of expert replicas held", &node_counters::replica_bytes, false},
      node_metric{"troupe_node_dispatches_refused_total",
                  "Dispatches for a retired epoch or an expert that is not there", &node_counters::dispatches_refused,
                  true},
      node_metric{"troupe_node_cpu_ns_total", "CPU time of the node's process", &node_counters::cpu_ns, true},
      node_metric{"troupe_node_link_busy_ns_total", "Time the busiest outgoing link was occupied, if it is known",
                  &node_counters::link_busy_ns, true},
      node_metric{"troupe_node_chain_ns_total", "Longest chain of stages and transfers of a micro-batch",
                  &node_counters::chain_ns, true}};
  for (const auto& metric : metrics) {
    for (const auto& node : board.nodes) {
      const prometheus::Labels labels{{"node", std::to_string(node.node)}};
      const auto number = static_cast<double>(node.counters.*metric.field);
      if (metric.counts)
        prometheus::BuildCounter().Name(metric.name).Help(metric.help).Register(registry).Add(labels).Increment(number);
      else
        prometheus::BuildGauge().Name(metric.name).Help(metric.help).Register(registry).Add(labels).Set(number);
    }
  }
  auto& live = prometheus::BuildGauge().Name("troupe_node_live").Help("Whether the node is live").Register(registry);
  for (const auto& node : board.nodes)
    live.Add({{"node", std::to_string(node.node)}}).Set(node.state == "live" || node.state == "draining" ? 1 : 0);
  add_rebalance_metrics(board.rebalance, registry);
  add_balance_metrics("prefill", board.prefill, registry);
  add_balance_metrics("decode", board.decode, registry);
  add_layer_metrics(board, registry);
  return prometheus::TextSerializer().Serialize(registry.Collect());
}

std::string render_table(const board_snapshot& board) {
  std::vector<std::vector<std::string>> lines{
      {"node", "state", "process", "device", "shards", "experts", "weights", "KV cache"}};
  for (const auto& node : board.nodes)
    lines.push_back({std::to_string(node.node), node.state, std::to_string(node.process), node.device,
                     std::to_string(node.shards), std::to_string(node.experts), megabytes(node.weight_bytes),
                     megabytes(node.kv_bytes)});
  std::vector<size_t> widths(lines.front().size());
  for (const auto& line : lines)
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  std::string text;
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) {
      text += line[i];
      if (i + 1 < line.size()) text += std::string(widths[i] - line[i].size() + 2, ' ');
    }
    text += "\n";
  }
  return text;
}

}  // namespace troupe
