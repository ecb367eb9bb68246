#include "runtime/device/gathering.hpp"

#include <algorithm>

namespace troupe {

void gathering::arrived(const row_stream& stream, uint32_t layer) {
  if (streams_.empty()) first_layer_ = last_layer_ = layer;
  first_layer_ = std::min(first_layer_, layer);
  last_layer_ = std::max(last_layer_, layer);
  const auto known =
      std::find_if(streams_.begin(), streams_.end(), [&](const known_stream& one) { return one.id == stream; });
  if (known != streams_.end())
    known->layer = layer;
  else if (streams_.size() < streams_max)
    streams_.push_back({stream, layer, wait_max});
}

// What comes next of a stream is nearer than what it has just been through; layers follow each other in a ring.
bool gathering::on_the_way(const known_stream& stream, uint32_t layer, std::optional<uint32_t> micro_batch,
                           std::span<const row_stream> there) const {
  if ((micro_batch && stream.id.micro_batch != *micro_batch) || stream.patience < wait_max) return false;
  const uint32_t ring = last_layer_ - first_layer_ + 1;
  const uint32_t ahead = layer > stream.layer ? layer - stream.layer : layer + ring - stream.layer;
  if (ahead > std::max(1U, ring / 2)) return false;
  return std::none_of(there.begin(), there.end(),
                      [&](const row_stream& one) { return one.shard() == stream.id.shard(); });
}

bool gathering::expects_more(uint32_t layer, std::optional<uint32_t> micro_batch,
                             std::span<const row_stream> there) const {
  return std::any_of(streams_.begin(), streams_.end(),
                     [&](const known_stream& one) { return on_the_way(one, layer, micro_batch, there); });
}

void gathering::launched(std::span<const row_stream> there) {
  if (there.size() < 2) return;
  for (auto& stream : streams_)
    if (stream.patience < patience_max && std::find(there.begin(), there.end(), stream.id) != there.end())
      ++stream.patience;
}

void gathering::waited_in_vain(uint32_t layer, std::optional<uint32_t> micro_batch, std::span<const row_stream> there) {
  for (auto& stream : streams_)
    if (on_the_way(stream, layer, micro_batch, there)) stream.patience -= wait_max;
}

}  // namespace troupe
