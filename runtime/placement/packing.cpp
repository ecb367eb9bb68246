#include "runtime/placement/packing.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

namespace troupe {

std::span<const uint16_t> weight_order::sort(std::span<const float> weights) {
  const size_t count = weights.size();
  order_.resize(count);
  std::array<std::array<uint16_t, 256>, 4> starts{};
  for (size_t i = 0; i < count; ++i) {
    const uint32_t key = ~std::bit_cast<uint32_t>(weights[i] + 0.0F);
    keys_[i] = {key, static_cast<uint16_t>(i)};
    for (unsigned digit = 0; digit < 4; ++digit) ++starts[digit][key >> 8 * digit & 255U];
  }
  keyed* from = keys_.data();
  keyed* to = other_.data();
  for (unsigned digit = 0; digit < 4; ++digit) {
    auto& start = starts[digit];
    if (count > 0 && start[from[0].key >> 8 * digit & 255U] == count) continue;
    uint16_t sum = 0;
    for (auto& entry : start) sum = static_cast<uint16_t>(sum + std::exchange(entry, sum));
    for (size_t i = 0; i < count; ++i) to[start[from[i].key >> 8 * digit & 255U]++] = from[i];
    std::swap(from, to);
  }
  for (size_t i = 0; i < count; ++i) order_[i] = from[i].item;
  return order_;
}

pack_filler::pack_filler(std::span<const uint32_t> capacities)
    : capacities_(capacities), weights_(capacities.size()), items_(capacities.size()) {
  heap_.reserve(capacities.size() + 1);
  pairs_ = std::all_of(capacities.begin(), capacities.end(), [](uint32_t capacity) { return capacity == 2; });
  clear();
}

void pack_filler::clear() {
  std::fill(weights_.begin(), weights_.end(), 0.0F);
  std::fill(items_.begin(), items_.end(), 0U);
  heap_.clear();
  opened_ = 0;
  next_ = 0;
  ordered_ = false;
}

uint32_t pack_filler::put(float weight) {
  if (weights_.size() <= scan_max) return put_by_scan(weight);
  // While items have weight, an empty pack is the lightest: they open the packs in order. An item without
  // weight leaves its pack as light as an empty one, which ends that.
  while (!ordered_ && opened_ < weights_.size() && capacities_[opened_] == 0) ++opened_;
  if (!ordered_ && opened_ < weights_.size() && weight > 0) {
    add(opened_, weight);
    return opened_++;
  }
  if (!ordered_) order_packs();
  return pairs_ && opened_ == weights_.size() ? put_by_queue(weight) : put_by_heap(weight);
}

uint32_t pack_filler::put_by_scan(float weight) {
  if (!ordered_) {
    for (uint32_t pack = 0; pack < weights_.size(); ++pack)
      heap_.push_back(items_[pack] < capacities_[pack] ? key_of(pack) : closed);
    if (heap_.size() % 2 != 0) heap_.push_back(closed);
    ordered_ = true;
  }
  // Two minima side by side, without branches.
  uint64_t even = closed;
  uint64_t odd = closed;
  for (size_t i = 0; i < heap_.size(); i += 2) {
    even = std::min(even, heap_[i]);
    odd = std::min(odd, heap_[i + 1]);
  }
  const auto pack = static_cast<uint32_t>(std::min(even, odd));
  add(pack, weight);
  heap_[pack] = items_[pack] < capacities_[pack] ? key_of(pack) : closed;
  return pack;
}

// The packs, heaviest last, since items came heaviest first: from back to front, except that equal weights
// go by number. In ascending order they are a heap as well.
void pack_filler::order_packs() {
  for (size_t pack = weights_.size(); pack-- > 0;)
    if (items_[pack] < capacities_[pack]) heap_.push_back(key_of(static_cast<uint32_t>(pack)));
  if (!std::is_sorted(heap_.begin(), heap_.end())) std::sort(heap_.begin(), heap_.end());
  ordered_ = true;
}

// With two items in each pack, a pack is full when it is met again: no order to keep.
uint32_t pack_filler::put_by_queue(float weight) {
  const auto pack = static_cast<uint32_t>(heap_[next_++]);
  add(pack, weight);
  return pack;
}

uint32_t pack_filler::put_by_heap(float weight) {
  const auto pack = static_cast<uint32_t>(heap_.front());
  add(pack, weight);
  uint64_t key = key_of(pack);
  if (items_[pack] == capacities_[pack]) {
    key = heap_.back();
    heap_.pop_back();
    if (heap_.empty()) return pack;
  }
  size_t hole = 0;
  for (size_t child = 1; child < heap_.size(); child = 2 * hole + 1) {
    if (child + 1 < heap_.size() && heap_[child + 1] < heap_[child]) ++child;
    if (heap_[child] >= key) break;
    heap_[hole] = heap_[child];
    hole = child;
  }
  heap_[hole] = key;
  return pack;
}

}  // namespace troupe
