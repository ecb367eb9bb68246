// Packing of weighted items, heaviest first, each into the lightest pack that has room.
//
// The inner step of EPLB, apart because it is where the time goes. Everything is allocated once, for the
// largest problem, and reused: a packer belongs to one solve on one thread.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

namespace troupe {

// Orders items by weight, heaviest first, equal ones by index. Weights are finite and not negative, so that
// the bits of a float order as the float does: a radix sort, four passes over the bytes that differ.
class weight_order {
 public:
  explicit weight_order(size_t items_max) : keys_(items_max), other_(items_max) {}

  // Valid until the next call.
  std::span<const uint16_t> sort(std::span<const float> weights);

 private:
  struct keyed {
    uint32_t key;
    uint16_t item;
  };
  std::vector<keyed> keys_;
  std::vector<keyed> other_;
  std::vector<uint16_t> order_;
};

// Packs with capacities. Items must come heaviest first.
class pack_filler {
 public:
  // Requires: capacities are kept by the caller while the filler is in use.
  explicit pack_filler(std::span<const uint32_t> capacities);

  void clear();
  // The lightest pack with room, the lowest of several; the item is in it then. Requires: some pack has room.
  uint32_t put(float weight);
  // The same among the packs for which `allowed(pack)` holds; -1 when there is none. Not to be mixed with put.
  template <class Allowed>
  int32_t put_where(float weight, Allowed&& allowed) {
    int32_t best = -1;
    for (uint32_t pack = 0; pack < weights_.size(); ++pack)
      if (items_[pack] < capacities_[pack] && (best < 0 || weights_[pack] < weights_[static_cast<size_t>(best)]) &&
          allowed(pack))
        best = static_cast<int32_t>(pack);
    if (best >= 0) add(static_cast<uint32_t>(best), weight);
    return best;
  }
  uint32_t items(uint32_t pack) const { return items_[pack]; }
  float weight(uint32_t pack) const { return weights_[pack]; }
  void shift(uint32_t pack, float weight) { weights_[pack] += weight; }
  void add(uint32_t pack, float weight) {
    weights_[pack] += weight;
    ++items_[pack];
  }

 private:
  uint32_t put_by_scan(float weight);
  uint32_t put_by_queue(float weight);
  uint32_t put_by_heap(float weight);
  void order_packs();

  // Weight bits above the pack's number, so that equal weights go by number.
  uint64_t key_of(uint32_t pack) const { return uint64_t{std::bit_cast<uint32_t>(weights_[pack])} << 32 | pack; }

  static constexpr size_t scan_max = 16;
  static constexpr uint64_t closed = ~uint64_t{0};
  std::span<const uint32_t> capacities_;
  std::vector<float> weights_;
  std::vector<uint32_t> items_;
  std::vector<uint64_t> heap_;  // keys: of open packs as a heap; by pack where there are few
  uint32_t opened_ = 0;         // packs that have had their first item
  size_t next_ = 0;
  bool pairs_ = true;  // every pack takes two items
  bool ordered_ = false;
};

}  // namespace troupe
