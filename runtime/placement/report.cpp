#include "runtime/placement/report.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

namespace troupe {

namespace {

template <class... Values>
std::string print(const char* format, Values... values) {
  std::array<char, 512> line{};
  std::snprintf(line.data(), line.size(), format, values...);
  return line.data();
}

std::string bytes_text(double bytes) {
  if (bytes >= 1e9) return print("%.1f GB", bytes / 1e9);
  if (bytes >= 1e6) return print("%.1f MB", bytes / 1e6);
  return print("%.1f kB", bytes / 1e3);
}

// Columns as wide as their widest cell: the first to the left, numbers to the right.
std::string align(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows.front().size());
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string out;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - row[i].size(), ' ');
      out += (i > 0 ? "  " : "") + (i == 0 ? row[i] + space : space + row[i]);
    }
    out.erase(out.find_last_not_of(' ') + 1);
    out += "\n";
  }
  return out;
}

std::string csv_text(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

nlohmann::json plan_json(const judged_plan& plan) {
  nlohmann::json made{{"balance_mean", plan.balance_mean},
                      {"balance_worst_layer", plan.balance_worst},
                      {"balance_bound", plan.bound},
                      {"worst_node_over_mean", plan.node_worst},
                      {"cross_node_rows_per_token", plan.crossing_rows},
                      {"wasted_slots", plan.wasted_slots},
                      {"moves", plan.moves},
                      {"move_bytes", plan.move_bytes},
                      {"move_seconds", plan.move_seconds},
                      {"solve_seconds", plan.solve_seconds},
                      {"reason", plan.reason}};
  if (!plan.failure.empty()) made["failure"] = plan.failure;
  return made;
}

}  // namespace

std::string place_table(const place_subject& subject, std::span<const evaluation> judged) {
  std::string out =
      print("%u layers x %u experts in %llu slots a layer on %zu devices (%s)\n", subject.layers, subject.experts,
            static_cast<unsigned long long>(subject.slots), subject.devices, subject.topology.c_str());
  out += "load " + subject.load + ", " +
         (subject.windows > 1 ? std::to_string(subject.windows) + " windows; each plan is judged on the window after it"
                              : std::string("one window, which each plan is judged on itself")) +
         "; rows go to replicas by `" + subject.selection + "`\n\n";
  std::vector<std::vector<std::string>> rows = {{"policy", "balance", "of bound", "worst layer", "worst node",
                                                 "cross-node rows", "wasted slots", "moved a plan", "solve ms"}};
  std::string failures;
  double bound = 0;
  for (const auto& each : judged) {
    const auto sum = summarise(each);
    bound = sum.mean.bound;
    const bool one = each.plans.size() == 1;
    rows.push_back({each.policy, print("%.3f", sum.mean.balance_mean),
                    print("%.1f %%", 100 * sum.mean.balance_mean / sum.mean.bound), print("%.3f", sum.balance_worst),
                    print("%.2f", sum.node_worst), print("%.2f", sum.mean.crossing_rows),
                    std::to_string(sum.mean.wasted_slots),
                    bytes_text(one ? static_cast<double>(sum.first_move_bytes) : sum.move_bytes),
                    print("%.2f", sum.mean.solve_seconds * 1e3)});
    if (sum.failures > 0)
      failures +=
          print("%s: %u of %zu plans were refused, the one before stayed in force; first: ", each.policy.c_str(),
                sum.failures, each.plans.size()) +
          sum.first_failure + "\n";
  }
  out += align(rows);
  out += print("\nbound of balance: %.3f for whoever knew the window to come\n", bound);
  out +=
      "balance is mean over maximum of the devices' rows, mean over layers and plans; worst layer: of all plans; "
      "worst\n"
      "node: rows of the fullest node over the mean node's; cross-node rows: of one token in one layer\n";
  if (!failures.empty()) out += "\n" + failures;
  return out;
}

std::string place_json(const place_subject& subject, std::span<const evaluation> judged) {
  nlohmann::json policies = nlohmann::json::array();
  for (const auto& each : judged) {
    const auto sum = summarise(each);
    nlohmann::json plans = nlohmann::json::array();
    for (const auto& plan : each.plans) plans.push_back(plan_json(plan));
    auto mean = plan_json(sum.mean);
    for (const char* key : {"reason", "moves"}) mean.erase(key);
    mean["balance_worst_layer"] = sum.balance_worst;
    mean["worst_node_over_mean"] = sum.node_worst;
    mean["move_bytes"] = sum.move_bytes;
    mean["first_move_bytes"] = sum.first_move_bytes;
    mean["solve_seconds_max"] = sum.solve_seconds_max;
    mean["failures"] = sum.failures;
    policies.push_back({{"policy", each.policy}, {"mean", std::move(mean)}, {"plans", std::move(plans)}});
  }
  const nlohmann::json document{
      {"load", subject.load},       {"topology", subject.topology},   {"layers", subject.layers},
      {"experts", subject.experts}, {"slots", subject.slots},         {"devices", subject.devices},
      {"windows", subject.windows}, {"selection", subject.selection}, {"policies", std::move(policies)}};
  return document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string place_csv(std::span<const evaluation> judged) {
  std::string out =
      "policy,plan,balance_mean,balance_worst_layer,balance_bound,worst_node_over_mean,cross_node_rows_per_token,"
      "wasted_slots,moves,move_bytes,move_seconds,solve_seconds,failure\n";
  for (const auto& each : judged)
    for (size_t i = 0; i < each.plans.size(); ++i) {
      const auto& plan = each.plans[i];
      out += csv_text(each.policy) +
             print(",%zu,%.6f,%.6f,%.6f,%.6f,%.6f,%llu,%llu,%llu,%.6f,%.6f,", i, plan.balance_mean, plan.balance_worst,
                   plan.bound, plan.node_worst, plan.crossing_rows, static_cast<unsigned long long>(plan.wasted_slots),
                   static_cast<unsigned long long>(plan.moves), static_cast<unsigned long long>(plan.move_bytes),
                   plan.solve_seconds) +
             csv_text(plan.failure) + "\n";
    }
  return out;
}

}  // namespace troupe
