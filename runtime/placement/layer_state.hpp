// One layer's replicas by slot, with the rows of each device, and the small changes that relieve a full one.
//
// What `incremental` and `search` have in common. One solve owns it, on one thread; it allocates only when
// it is made. Rows of an expert are shared evenly by its replicas.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace troupe {

// A change of one layer: the contents of two slots change places, or `expert` takes the place of what slot
// `to` held. What it loads counts in replicas.
struct layer_step {
  enum class kind : uint8_t { none, exchange, replicate };
  kind what = kind::none;
  uint16_t from = 0;    // slot; exchange only
  uint16_t to = 0;      // slot
  uint16_t expert = 0;  // replicate only
  uint16_t loads = 0;
  float gain = 0;  // rows above the target that it takes away, both devices together
};

class layer_state {
 public:
  // `first` and slots as in slot_map. Keeps `first`.
  layer_state(std::span<const uint32_t> first, uint32_t experts);

  // Takes over a layer: [slots] of experts, each placed at least once, and [experts] rows.
  void start(std::span<const uint16_t> slots, std::span<const float> rows);

  // The exchange that takes away most rows above `target` for each replica loaded, and at least `worth` rows for
  // each: from the fullest device above the target that any exchange relieves so much. kind::none when there is none.
  layer_step best_exchange(float target, float worth);
  // A change that brings an expert whose replicas have more than `above` rows nearer to the number of replicas that
  // `wanted` gives it, [experts]: the one with the largest, in place of one that has too many (or of nothing), where
  // that leaves a device lightest. kind::none when there is no such pair.
  layer_step step_towards(std::span<const uint32_t> wanted, float above);
  void apply(const layer_step& step);

  float highest() const;
  std::span<const uint16_t> slots() const { return slots_; }
  // Looks at every device again, after a change of what is asked.
  void forget_stuck() { stuck_.assign(stuck_.size(), false); }

 private:
  bool holds(uint32_t device, uint16_t expert) const;
  bool allowed(uint32_t mine, uint32_t theirs) const;
  layer_step best_exchange_from(uint32_t fullest, float target, float worth);
  float measure_gains(float own, float load, float target);
  void set(uint16_t slot, uint16_t expert);
  void spread(uint16_t expert, uint32_t count);
  void refresh(uint32_t device);

  std::span<const uint32_t> first_;
  uint32_t width_ = 0;               // slots, rounded up to whole vectors
  std::vector<uint16_t> device_of_;  // [slots]
  std::vector<uint16_t> slots_;      // [slots]
  std::vector<float> rows_;          // [experts]
  std::vector<float> each_;          // [experts], rows of one replica
  std::vector<uint16_t> counts_;     // [experts]
  std::vector<float> load_;          // [devices]
  std::vector<bool> stuck_;          // [devices], without a worthwhile change since their load last changed
  std::vector<float> content_;       // [width], rows of what the slot holds
  std::vector<float> rest_;          // [width], rows of the device's other slots
  std::vector<float> cheaper_;  // [width], 2 where the slot is empty, so that an exchange loads one replica, else 1
  std::vector<float> gains_;    // [width], scratch
};

}  // namespace troupe
