// Whose rows a launch of experts should wait for: a decision, no waiting.
//
// Shards that run in step reach a layer one shortly after another. A launch without the late ones reads the
// experts' weights once more for them, and since their answers then come later too, the shards stay apart. So a
// device that has nothing else to do waits for the streams of rows that are on their way to the layer, for as long
// as reading the weights a few times takes: where processes share cores, that is how far they come apart. A stream is
// one micro-batch of one shard. It is waited for while that pays: a wait in vain costs it what was lost, a launch
// together with others' rows earns the one reading that was saved. So a shard that has ended, died or is always
// late costs a few waits and then none. Owned by a device's queue, which locks.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/wire/micro_batch.hpp"

namespace troupe {

// A micro-batch of a shard: node, endpoint slot, number.
struct row_stream {
  uint16_t node = 0;
  uint16_t slot = 0;
  uint32_t micro_batch = 0;

  static row_stream of(const micro_batch_header& dispatch) {
    return {dispatch.source_node, dispatch.source_slot, dispatch.micro_batch};
  }
  uint32_t shard() const { return uint32_t{node} << 16U | slot; }
  bool operator==(const row_stream&) const = default;
};

class gathering {
 public:
  // The longest wait, in readings of the weights that the launch takes.
  static constexpr uint32_t wait_max = 4;

  // The first rows of a dispatch have arrived.
  void arrived(const row_stream& stream, uint32_t layer);

  // Whether rows of a shard that has none among `there` are on their way to `layer`; where `micro_batch` is given, rows
  // of that number.
  bool expects_more(uint32_t layer, std::optional<uint32_t> micro_batch, std::span<const row_stream> there) const;

  // Rows were launched together.
  void launched(std::span<const row_stream> there);
  // A launch waited for those that it expected, and they did not come.
  void waited_in_vain(uint32_t layer, std::optional<uint32_t> micro_batch, std::span<const row_stream> there);

 private:
  static constexpr size_t streams_max = 4096;  // more are not waited for: numbers that peers send take no memory
  static constexpr uint32_t patience_max = 8 * wait_max;

  struct known_stream {
    row_stream id;
    uint32_t layer = 0;            // of the newest rows
    uint32_t patience = wait_max;  // readings that waiting for it may still cost
  };

  bool on_the_way(const known_stream& stream, uint32_t layer, std::optional<uint32_t> micro_batch,
                  std::span<const row_stream> there) const;

  std::vector<known_stream> streams_;
  // Layers with experts, as far as seen.
  uint32_t first_layer_ = 0;
  uint32_t last_layer_ = 0;
};

}  // namespace troupe
