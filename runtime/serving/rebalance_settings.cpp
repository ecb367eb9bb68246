#include "runtime/serving/rebalance_settings.hpp"

#include <nlohmann/json.hpp>

#include <cstdio>

namespace troupe {

namespace {

// One list of the fields, for writing and for reading.
template <class Settings, class Visit>
void each_field(Settings& settings, Visit&& visit) {
  visit("policy", settings.policy);
  visit("window_ms", settings.window_ms);
  visit("windows", settings.windows);
  visit("decay", settings.decay);
  visit("period_ms", settings.period_ms);
  visit("imbalance", settings.imbalance);
  visit("redundant_per_layer", settings.redundant_per_layer);
  visit("staging_replicas", settings.staging_replicas);
  visit("bandwidth_mb_s", settings.bandwidth_mb_s);
  visit("move_mb_max", settings.move_mb_max);
  visit("move_timeout_ms", settings.move_timeout_ms);
  visit("policy_timeout_ms", settings.policy_timeout_ms);
  visit("by_source", settings.by_source);
  visit("co_activation", settings.co_activation);
}

}  // namespace

result<void> validate(const rebalance_settings& settings) {
  struct bound {
    const char* field;
    double value, low, high;
  };
  const bound bounds[] = {{"window_ms", double(settings.window_ms), 20, 3'600'000},
                          {"windows", double(settings.windows), 1, 1024},
                          {"decay", settings.decay, 0, 0.999},
                          {"period_ms", double(settings.period_ms), 0, 86'400'000},
                          {"imbalance", settings.imbalance, 0, 1000},
                          {"redundant_per_layer", double(settings.redundant_per_layer), -1, 65535},
                          {"staging_replicas", double(settings.staging_replicas), 1, 65535},
                          {"bandwidth_mb_s", settings.bandwidth_mb_s, 0.001, 1e6},
                          {"move_mb_max", settings.move_mb_max, 0, 1e9},
                          {"move_timeout_ms", double(settings.move_timeout_ms), 100, 3'600'000},
                          {"policy_timeout_ms", double(settings.policy_timeout_ms), 10, 600'000}};
  for (const auto& b : bounds) {
    if (b.value >= b.low && b.value <= b.high) continue;  // false for NaN
    char text[160];
    std::snprintf(text, sizeof text, "rebalance: %s is %g; it must be between %g and %g", b.field, b.value, b.low,
                  b.high);
    return error{errc::invalid_argument, text};
  }
  if (settings.imbalance > 0 && settings.imbalance < 1)
    return error{errc::invalid_argument,
                 "rebalance: imbalance is the fullest node's rows over the mean node's, so it must be above 1; or 0 "
                 "for never"};
  return {};
}

std::string to_json(const rebalance_settings& settings) {
  nlohmann::json document;
  each_field(settings, [&](const char* key, const auto& value) { document[key] = value; });
  return document.dump();
}

result<rebalance_settings> parse_rebalance_settings(const std::string& json) {
  try {
    const auto document = nlohmann::json::parse(json);
    rebalance_settings settings;
    each_field(settings, [&](const char* key, auto& value) { document.at(key).get_to(value); });
    return settings;
  } catch (const nlohmann::json::exception& failure) {
    return error{errc::malformed, std::string("the head's rebalance settings cannot be read: ") + failure.what()};
  }
}

}  // namespace troupe
