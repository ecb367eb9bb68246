#include "runtime/placement/search.hpp"

#include <algorithm>
#include <numeric>

#include "runtime/placement/eplb.hpp"
#include "runtime/placement/layer_state.hpp"
#include "runtime/placement/packing.hpp"
#include "runtime/placement/random.hpp"

namespace troupe {

namespace {

// Replica counts of one layer, packed anew after each trade.
class trade_floor {
 public:
  trade_floor(std::span<const uint32_t> first, uint32_t experts)
      : first_(first),
        order_(first.back()),
        counts_(experts),
        items_(first.back()),
        each_(first.back()),
        slots_(first.back()),
        kept_(first.back()),
        best_(first.back()) {
    for (size_t device = 0; device + 1 < first.size(); ++device)
      capacities_.push_back(first[device + 1] - first[device]);
    filler_.emplace_back(capacities_);
  }

  // Starts from the counts of a packed layer.
  void start(std::span<const uint16_t> slots, std::span<const float> rows) {
    rows_ = rows;
    std::copy(slots.begin(), slots.end(), best_.begin());
    return_to_best();
    best_ = kept_;
    best_highest_ = highest_;
  }

  // In rounds, each from the best so far.
  void search(uint32_t trials, float bound, seeded_random& random) {
    constexpr uint32_t round = 250;
    constexpr float first_threshold = 0.02F;
    for (uint32_t trial = 0; trial < trials && best_highest_ > bound * (1 + 1e-5F); ++trial) {
      if (trial % round == 0) return_to_best();
      const float left = 1 - static_cast<float>(trial % round) / static_cast<float>(round);
      trade(first_threshold * left, random);
    }
  }

  std::span<const uint16_t> best() const { return best_; }

 private:
  // An expert of the fullest device, or of any, gets a replica that another gives up, or one of the free slots;
  // or it gives one up for nobody.
  void trade(float threshold, seeded_random& random) {
    const auto experts = static_cast<uint32_t>(counts_.size());
    uint32_t gains = random.below(experts);
    if (random.below(4) != 0) {
      const uint32_t slot = first_[fullest_] + random.below(first_[fullest_ + 1] - first_[fullest_]);
      if (kept_[slot] != slot_map::no_expert) gains = kept_[slot];
    }
    uint32_t gives = experts;
    const uint32_t start = random.below(experts);
    for (uint32_t i = 0; i < experts && gives == experts; ++i) {
      const uint32_t expert = (start + i) % experts;
      if (counts_[expert] > 1 && expert != gains) gives = expert;
    }
    const bool free = used_ < first_.back();
    const uint32_t what = random.below(16);
    const bool gain = what != 0;
    const bool take_free = free && what != 0 && what < 8;
    const bool give = gives < experts && !take_free;
    if (!give && !(gain && free)) return;
    change(gains, gives, gain, give, 1);
    const uint32_t before = fullest_;
    const float highest = pack();
    if (highest > highest_ * (1 + threshold)) {
      change(gains, gives, gain, give, -1);
      fullest_ = before;
      return;
    }
    highest_ = highest;
    std::swap(slots_, kept_);
    if (highest < best_highest_) {
      best_highest_ = highest;
      best_ = kept_;
    }
  }

  void return_to_best() {
    std::fill(counts_.begin(), counts_.end(), 0U);
    used_ = 0;
    for (const uint16_t expert : best_)
      if (expert != slot_map::no_expert) {
        ++counts_[expert];
        ++used_;
      }
    highest_ = pack();
    std::swap(slots_, kept_);
  }

  void change(uint32_t gains, uint32_t gives, bool gain, bool give, int sign) {
    const auto by = static_cast<uint32_t>(sign);
    if (gain) {
      counts_[gains] += by;
      used_ += by;
    }
    if (give) {
      counts_[gives] -= by;
      used_ -= by;
    }
  }

  // Packs the counts into slots_; the rows of the fullest device.
  float pack() {
    uint32_t items = 0;
    for (uint32_t expert = 0; expert < counts_.size(); ++expert) {
      const float each = rows_[expert] / static_cast<float>(counts_[expert]);
      for (uint32_t i = 0; i < counts_[expert]; ++i) {
        each_[items] = each;
        items_[items++] = static_cast<uint16_t>(expert);
      }
    }
    std::fill(slots_.begin(), slots_.end(), slot_map::no_expert);
    auto& filler = filler_.front();
    filler.clear();
    for (const uint16_t item : order_.sort({each_.data(), items})) {
      const uint32_t device = filler.put(each_[item]);
      slots_[first_[device] + filler.items(device) - 1] = items_[item];
    }
    fullest_ = 0;
    for (uint32_t device = 1; device < capacities_.size(); ++device)
      if (filler.weight(device) > filler.weight(fullest_)) fullest_ = device;
    return filler.weight(fullest_);
  }

  std::span<const uint32_t> first_;
  std::span<const float> rows_;
  std::vector<uint32_t> capacities_;
  std::vector<pack_filler> filler_;
  weight_order order_;
  std::vector<uint32_t> counts_;  // [experts]
  std::vector<uint16_t> items_;   // [slots], replicas before packing
  std::vector<float> each_;       // [slots]
  std::vector<uint16_t> slots_;   // the trial
  std::vector<uint16_t> kept_;    // what it is compared with
  std::vector<uint16_t> best_;
  uint32_t used_ = 0;
  uint32_t fullest_ = 0;
  float highest_ = 0;
  float best_highest_ = 0;
};

}  // namespace

result<placement_proposal> place_by_search(const placement_input& input, const search_settings& settings) {
  const uint32_t experts = input.load.experts;
  const auto expected = expected_rows(input.load, input.limits.decay);
  const auto rows = single_precision(expected);
  const auto usable = usable_slots(input);
  auto slots = solve_eplb(rows, input.load.layers, experts, 0, input.topology, usable, false);
  const auto serving =
      static_cast<float>(usable.size()) - static_cast<float>(std::count(usable.begin(), usable.end(), 0U));
  trade_floor floor(slots.first, experts);
  layer_state state(slots.first, experts);
  seeded_random random(settings.seed);
  for (uint32_t layer = 0; layer < input.load.layers; ++layer) {
    const auto layer_rows = std::span(rows).subspan(size_t{layer} * experts, experts);
    const float mean = std::accumulate(layer_rows.begin(), layer_rows.end(), 0.0F) / serving;
    const auto bound = static_cast<float>(
        mean / balance_bound(std::span(expected).subspan(size_t{layer} * experts, experts), usable, row_shares::even));
    uint16_t* row = slots.experts.data() + size_t{layer} * slots.slots();
    floor.start({row, slots.slots()}, layer_rows);
    floor.search(settings.trials, bound, random);
    // Exchanges between devices, towards a target that is lowered as long as it is reached.
    state.start(floor.best(), layer_rows);
    std::copy(state.slots().begin(), state.slots().end(), row);
    float reached = state.highest();
    for (int round = 0; round < 40 && reached > bound * (1 + 1e-5F); ++round) {
      const float target = reached - (reached - bound) / 8;
      for (uint32_t step = 0; step < 200; ++step) {
        const auto taken = state.best_exchange(target, 0);
        if (taken.what == layer_step::kind::none) break;
        state.apply(taken);
      }
      if (state.highest() >= reached) break;
      reached = state.highest();
      std::copy(state.slots().begin(), state.slots().end(), row);
    }
  }
  return placement_proposal{to_expert_map(slots, experts),
                            "search: replicas traded between experts, " + std::to_string(settings.trials) +
                                " trials a layer, from seed " + std::to_string(settings.seed)};
}

}  // namespace troupe
