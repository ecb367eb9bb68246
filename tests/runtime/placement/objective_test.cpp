#include "runtime/placement/objective.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "runtime/placement/packing.hpp"
#include "runtime/placement/random.hpp"

namespace troupe {
namespace {

// The best balance of one layer over all replica counts and all ways to pack them, by trying them all.
class every_map {
 public:
  every_map(std::vector<double> rows, std::vector<uint32_t> slots) : rows_(std::move(rows)), slots_(std::move(slots)) {
    load_.resize(slots_.size());
    used_.resize(slots_.size());
    lowest_ = std::accumulate(rows_.begin(), rows_.end(), 0.0) + 1;
    choose(0, std::accumulate(slots_.begin(), slots_.end(), 0U));
  }
  double balance() const {
    return std::accumulate(rows_.begin(), rows_.end(), 0.0) / static_cast<double>(slots_.size()) / lowest_;
  }

 private:
  void choose(size_t expert, uint32_t left) {
    if (expert == rows_.size()) return pack(0, 0);
    const auto others = static_cast<uint32_t>(rows_.size() - expert - 1);
    for (uint32_t count = 1; count + others <= left; ++count) {
      for (uint32_t i = 0; i < count; ++i) items_.push_back(rows_[expert] / count);
      choose(expert + 1, left - count);
      items_.resize(items_.size() - count);
    }
  }
  void pack(size_t item, double highest) {
    if (highest >= lowest_) return;
    if (item == items_.size()) {
      lowest_ = highest;
      return;
    }
    for (size_t device = 0; device < slots_.size(); ++device) {
      if (used_[device] == slots_[device]) continue;
      ++used_[device];
      load_[device] += items_[item];
      pack(item + 1, std::max(highest, load_[device]));
      load_[device] -= items_[item];
      --used_[device];
    }
  }

  std::vector<double> rows_;
  std::vector<uint32_t> slots_;
  std::vector<double> items_;
  std::vector<double> load_;
  std::vector<uint32_t> used_;
  double lowest_ = 0;
};

}  // namespace

TEST_CASE("no map is better than the bound, and the bound is often reached") {
  uint32_t reached = 0;
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    CAPTURE(seed);
    seeded_random random(seed);
    const uint32_t devices = 2 + random.below(2);
    std::vector<uint32_t> slots(devices);
    for (auto& count : slots) count = 1 + random.below(3);
    const auto all = std::accumulate(slots.begin(), slots.end(), 0U);
    std::vector<double> rows(std::max(1U, all - random.below(3)));
    for (auto& entry : rows) entry = std::floor(20 * std::exp(random.normal())) + 1;
    const double best = every_map(rows, slots).balance();
    const double bound = balance_bound(rows, slots, row_shares::even);
    CHECK(best <= bound * (1 + 1e-6));
    CHECK(bound <= balance_bound(rows, slots, row_shares::any) * (1 + 1e-3));
    reached += best > 0.98 * bound ? 1 : 0;
  }
  MESSAGE("reached within 2 % in " << reached << " of 150");
  CHECK(reached > 50);
}

TEST_CASE("balance is mean over maximum of the devices that serve") {
  const std::vector<double> rows = {4, 2, 0, 100};
  CHECK(balance_of(rows, std::vector<uint32_t>{1, 1, 1, 0}) == doctest::Approx(0.5));
  CHECK(balance_of(std::vector<double>{0, 0}, std::vector<uint32_t>{1, 1}) == 1);
}

TEST_CASE("every way of packing finds the lightest pack, the lowest of equals") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    seeded_random random(seed);
    // Few packs are scanned, many are in a heap, pairs in a queue.
    const uint32_t packs = 1 + random.below(40);
    std::vector<uint32_t> capacities(packs);
    const bool pairs = random.below(2) == 0;
    for (auto& capacity : capacities) capacity = pairs ? 2 : 1 + random.below(4);
    const auto all = std::accumulate(capacities.begin(), capacities.end(), 0U);
    std::vector<float> weights(all);
    const uint32_t range = random.below(2) == 0 ? 5 : 100'000;
    for (auto& weight : weights) weight = static_cast<float>(random.below(range));
    weight_order order(weights.size());
    std::vector<uint16_t> expected(all);
    std::iota(expected.begin(), expected.end(), uint16_t{0});
    std::stable_sort(expected.begin(), expected.end(), [&](uint16_t a, uint16_t b) { return weights[a] > weights[b]; });
    const auto sorted = order.sort(weights);
    REQUIRE(std::equal(sorted.begin(), sorted.end(), expected.begin(), expected.end()));
    pack_filler filler(capacities);
    std::vector<float> held(packs);
    std::vector<uint32_t> items(packs);
    for (const uint16_t item : sorted) {
      uint32_t lightest = packs;
      for (uint32_t pack = 0; pack < packs; ++pack)
        if (items[pack] < capacities[pack] && (lightest == packs || held[pack] < held[lightest])) lightest = pack;
      REQUIRE(filler.put(weights[item]) == lightest);
      held[lightest] += weights[item];
      ++items[lightest];
    }
  }
}

}  // namespace troupe
