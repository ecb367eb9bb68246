#include "apps/cluster/step_table.hpp"

#include <algorithm>
#include <cstdio>

namespace troupe {

namespace {

std::string ms(uint64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", static_cast<double>(ns) * 1e-6);
  return text;
}

std::string percent(uint64_t part, uint64_t whole) {
  if (whole == 0) return "-";
  char text[16];
  std::snprintf(text, sizeof text, "%.1f %%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
  return text;
}

std::string megabytes(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", static_cast<double>(bytes) * 1e-6);
  return text;
}

uint64_t stage_ns(const layer_account& layer, std::initializer_list<stage_kind> kinds) {
  uint64_t sum = 0;
  for (const auto kind : kinds) sum += layer.compute_ns[index_of(kind)];
  return sum;
}

std::vector<std::string> layer_line(const std::string& name, const layer_account& layer) {
  return {name,
          std::to_string(layer.rows),
          std::to_string(layer.expert_rows),
          std::to_string(layer.stages[index_of(stage_kind::mlp)]),
          std::to_string(layer.weight_passes),
          ms(stage_ns(layer, {stage_kind::attn, stage_kind::attn_0, stage_kind::attn_1})),
          ms(stage_ns(layer, {stage_kind::shared})),
          ms(stage_ns(layer, {stage_kind::mlp})),
          ms(stage_ns(layer, {stage_kind::head})),
          std::to_string(layer.messages),
          megabytes(layer.wire_bytes),
          ms(layer.wire_ns),
          ms(layer.exposed_ns),
          ms(layer.bubble_ns),
          ms(layer.mailbox_ns)};
}

// How often each expert's weights are read for one pass of a shard's whole batch: 1 is once.
std::string passes_per_batch(const board_node& node, const layer_account& total) {
  uint64_t moe_layers = 0;
  for (const auto& layer : node.layers) moe_layers += layer.stages[index_of(stage_kind::mlp)] > 0 ? 1 : 0;
  const uint64_t at_once = std::max<uint64_t>(1, node.counters.micro_batches) * std::max<uint32_t>(1, node.shards);
  if (moe_layers == 0 || node.experts == 0 || node.counters.steps < at_once) return "-";
  const double batches = static_cast<double>(node.counters.steps) / static_cast<double>(at_once);
  char text[16];
  std::snprintf(text, sizeof text, "%.2f", static_cast<double>(total.weight_passes) / (batches * node.experts));
  return text;
}

}  // namespace

run_times times_of(const board_node& node) {
  layer_account total;
  for (const auto& layer : node.layers) total.add(layer);
  return {total.active_ns(), total.busy_ns(), node.counters.cpu_ns / std::max<uint32_t>(1, node.threads),
          node.counters.link_busy_ns, node.counters.chain_ns};
}

std::string align(const std::vector<std::vector<std::string>>& lines) {
  std::vector<size_t> widths;
  for (const auto& line : lines) {
    if (widths.size() < line.size()) widths.resize(line.size());
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text;
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i)
      text += std::string(widths[i] - line[i].size(), ' ') + line[i] + (i + 1 < line.size() ? "  " : "");
    text += "\n";
  }
  return text;
}

std::string render_steps(const board_snapshot& board) {
  std::vector<layer_account> layers;
  layer_account all;
  for (const auto& node : board.nodes) {
    if (layers.size() < node.layers.size()) layers.resize(node.layers.size());
    for (size_t i = 0; i < node.layers.size(); ++i) {
      layers[i].add(node.layers[i]);
      all.add(node.layers[i]);
    }
  }
  std::string text = "Sums over all nodes since they began to serve; times in ms, bytes in MB\n\n";
  std::vector<std::vector<std::string>> lines{{"layer", "rows", "expert rows", "launches", "passes", "attn", "shared",
                                               "mlp", "head", "messages", "MB", "wire", "exposed", "bubble",
                                               "mailbox"}};
  for (size_t i = 0; i < layers.size(); ++i) lines.push_back(layer_line(std::to_string(i), layers[i]));
  lines.push_back(layer_line("all", all));
  text += align(lines);
  text +=
      "\nTimes of each node in ms, its bound (the largest of device, core, link and chain) over the time with work\n\n";
  lines = {{"node", "steps", "active", "device", "core", "link", "chain", "bound by", "reached", "passes/batch"}};
  for (const auto& node : board.nodes) {
    layer_account total;
    for (const auto& layer : node.layers) total.add(layer);
    const auto times = times_of(node);
    lines.push_back({std::to_string(node.node), std::to_string(node.counters.steps), ms(times.active_ns),
                     ms(times.device_ns), ms(times.core_ns), times.link_ns == 0 ? "-" : ms(times.link_ns),
                     ms(times.chain_ns), times.bound_by(), percent(times.bound_ns(), times.active_ns),
                     passes_per_batch(node, total)});
  }
  text += align(lines) + "\nSchedule " + board.settings.schedule.name + "\n";
  for (const auto& node : board.nodes)
    if (!node.schedule.empty()) text += "  node " + std::to_string(node.node) + ": " + node.schedule + "\n";
  return text;
}

}  // namespace troupe
