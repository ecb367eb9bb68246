#include "runtime/placement/objective.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace troupe {

std::vector<double> device_rows(const expert_map& map, std::span<const double> rows, size_t devices,
                                std::span<const float> shares) {
  std::vector<double> received(size_t{map.layers} * devices, 0.0);
  for (uint32_t layer = 0; layer < map.layers; ++layer) {
    double* row = received.data() + size_t{layer} * devices;
    for (uint32_t expert = 0; expert < map.experts; ++expert) {
      const size_t entry = size_t{layer} * map.experts + expert;
      const uint32_t from = map.offsets[entry];
      const uint32_t to = map.offsets[entry + 1];
      for (uint32_t i = from; i < to; ++i)
        row[map.devices[i]] += shares.empty() ? rows[entry] / (to - from) : rows[entry] * double{shares[i]};
    }
  }
  return received;
}

double balance_of(std::span<const double> layer_rows, std::span<const uint32_t> slots) {
  double total = 0;
  double highest = 0;
  size_t serving = 0;
  for (size_t device = 0; device < slots.size(); ++device) {
    if (slots[device] == 0) continue;
    ++serving;
    total += layer_rows[device];
    highest = std::max(highest, layer_rows[device]);
  }
  return highest > 0 ? total / static_cast<double>(serving) / highest : 1.0;
}

placement_objective objective_of(const expert_map& map, std::span<const double> rows, std::span<const uint32_t> slots,
                                 std::span<const float> shares) {
  const auto received = device_rows(map, rows, slots.size(), shares);
  placement_objective objective{0, 1, 0};
  for (uint32_t layer = 0; layer < map.layers; ++layer) {
    const double balance = balance_of({received.data() + layer * slots.size(), slots.size()}, slots);
    objective.balance_mean += balance / map.layers;
    if (balance < objective.balance_worst) {
      objective.balance_worst = balance;
      objective.worst_layer = layer;
    }
  }
  return objective;
}

namespace {

// Replicas that an expert needs so that none serves more than `rows_max`.
double replicas_needed(double rows, double rows_max) { return std::max(1.0, std::ceil(rows / rows_max - 1e-9)); }

struct shrinking {
  double fewer = 0;  // replicas that are large no more
  double slots = 0;  // what that takes
};

// A replica above rows_max - small shares its device with such as are below `small` only: with fewer of these than
// it has slots to share, slots stay empty. So the slots that replicas take, those beside large ones counted too and
// small ones not, are at most all slots; and all replicas are at most all slots. If the two sums, the second
// `weight` times, are above what they may be whatever numbers of replicas the experts have, no map exists.
bool impossible_beside(std::span<const double> rows, double slots, double slots_beside, double rows_max, double small,
                       double weight) {
  double least = 0;
  for (const double expert : rows) {
    const auto cost = [&](double replicas) {
      const double each = expert / replicas;
      double taken = replicas * (1 + weight);
      if (each > rows_max - small + 1e-9 * rows_max) taken += replicas * slots_beside;
      if (each < small) taken -= replicas;
      return taken;
    };
    const double needed = replicas_needed(expert, rows_max);
    least += std::min({cost(needed), cost(std::max(needed, replicas_needed(expert, rows_max - small))),
                       cost(std::max(needed, std::floor(expert / small) + 1))});
  }
  return least > slots * (1 + weight) + 1e-6;
}

// Whether it can be shown that no map keeps every device at or below `rows_max`.
bool impossible(std::span<const double> rows, std::span<const uint32_t> slots, double rows_max, row_shares shares,
                std::vector<shrinking>& options) {
  const double all = std::accumulate(slots.begin(), slots.end(), 0.0);
  double spare = all;
  for (const double expert : rows) spare -= replicas_needed(expert, rows_max);
  if (spare < 0) return true;
  if (shares == row_shares::any) return false;
  const uint32_t most = *std::max_element(slots.begin(), slots.end());
  uint32_t least = most;
  for (const uint32_t device : slots)
    if (device > 0) least = std::min(least, device);
  for (double small = rows_max / 2; least > 1 && small > rows_max / 1000; small *= 0.85)
    for (const double weight : {0.1, 0.25, 0.5, 1.0, 2.0, 4.0})
      if (impossible_beside(rows, all, least - 1, rows_max, small, weight)) return true;
  for (uint32_t k = 2; k <= most; ++k) {
    double allowed = 0;
    for (const uint32_t device : slots) allowed += std::min(device, k - 1);
    // Large: above a k-th of the maximum. More replicas of an expert make all of them small at once; the best
    // use of the spare slots for that, fractions of an expert allowed, leaves no fewer large ones than any map has.
    double large = 0;
    options.clear();
    for (const double expert : rows) {
      const double needed = replicas_needed(expert, rows_max);
      if (expert / needed <= rows_max / k * (1 + 1e-9)) continue;
      large += needed;
      options.push_back({needed, replicas_needed(expert, rows_max / k) - needed});
    }
    std::sort(options.begin(), options.end(),
              [](const shrinking& a, const shrinking& b) { return a.fewer * b.slots > b.fewer * a.slots; });
    double left = spare;
    for (const auto& option : options) {
      if (left <= 0) break;
      const double part = option.slots > 0 ? std::min(1.0, left / option.slots) : 1.0;
      large -= part * option.fewer;
      left -= part * option.slots;
    }
    if (large > allowed + 1e-6) return true;
  }
  return false;
}

}  // namespace

double balance_bound(std::span<const double> layer_rows, std::span<const uint32_t> slots, row_shares shares) {
  const double total = std::accumulate(layer_rows.begin(), layer_rows.end(), 0.0);
  const auto serving =
      static_cast<double>(slots.size()) - static_cast<double>(std::count(slots.begin(), slots.end(), 0U));
  if (total <= 0 || serving == 0) return 1;
  const double mean = total / serving;
  std::vector<shrinking> options;
  options.reserve(layer_rows.size());
  double low = mean;  // the maximum is at least this
  if (!impossible(layer_rows, slots, low, shares, options)) return 1;
  double high = low * 1.1;
  for (; high < total && impossible(layer_rows, slots, high, shares, options); high *= 1.1) low = high;
  while (high - low > low * 1e-4) {
    const double middle = (low + high) / 2;
    (impossible(layer_rows, slots, middle, shares, options) ? low : high) = middle;
  }
  return mean / low;
}

}  // namespace troupe
