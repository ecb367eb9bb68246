// One layer's replicas by slot, with the rows of each device, and the smallest changes that relieve a device.
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
  float gain = 0;  // rows above the target that it takes away, all devices together
};

class layer_state {
 public:
  // `first` and slots as in slot_map. Keeps `first`.
  layer_state(std::span<const uint32_t> first, uint32_t experts);

  // Takes over a layer: [slots] of experts, each placed at least once, and [experts] rows.
  void start(std::span<const uint16_t> slots, std::span<const float> rows);

  // The change that takes away most rows above `target` for each replica loaded, from the fullest device.
  // kind::none when that is at or below the target or nothing helps.
  layer_step best_step(float target);
  void apply(const layer_step& step);

  float highest() const;
  std::span<const uint16_t> slots() const { return slots_; }

 private:
  static constexpr size_t partner_slots = 128;  // of the lightest devices, that a step looks at

  float excess(float load, float target) const { return load > target ? load - target : 0; }
  bool holds(uint32_t device, uint16_t expert) const;
  void set(uint16_t slot, uint16_t expert);
  void spread(uint16_t expert, uint32_t count);
  float gain_of_replicating(uint16_t expert, uint16_t slot, float target);
  void consider_exchanges(uint32_t fullest, uint32_t partner, float target, layer_step& best) const;
  void consider_replicas(uint32_t fullest, uint32_t partner, float target, layer_step& best);

  std::span<const uint32_t> first_;
  std::vector<uint16_t> device_of_;             // [slots]
  std::vector<uint16_t> slots_;                 // [slots]
  std::vector<float> rows_;                     // [experts]
  std::vector<float> each_;                     // [experts], rows of one replica
  std::vector<float> load_;                     // [devices]
  std::vector<float> changed_;                  // [devices], scratch
  std::vector<std::vector<uint16_t>> holders_;  // [experts], slots
  std::vector<uint32_t> by_load_;
  std::vector<uint16_t> touched_;
};

}  // namespace troupe
