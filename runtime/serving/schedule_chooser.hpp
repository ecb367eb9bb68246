// Which of a schedule's choices a shard uses now, from what its steps took.
//
// Whether two micro-batches pay depends on the size of the batch, on the model, on the wire and on what
// other shards do, so it is measured rather than modelled: at each size of the batch (a power of two,
// prompts apart from decoding) every choice runs for a few steps, then the fastest in rows a second is
// kept. Another replaces it only when it is faster by more than the hysteresis. Pure: time is passed in.
// Owned by one shard's actor.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/serving/schedule.hpp"

namespace troupe {

class schedule_chooser {
 public:
  explicit schedule_chooser(const schedule& from) : schedule_(from) {}

  const schedule_choice& current() const { return schedule_.choices[current_]; }
  uint64_t switches() const { return switches_; }
  // What is used and why: "2 micro-batches, whole attention (batch 64 to 127, decode: ...)".
  std::string reason() const;

  // A micro-batch's step has ended: its rows, and the rows that are ready or running in the whole shard.
  // Returns whether `current()` has changed.
  bool step_ended(uint32_t step_rows, uint32_t decoding_rows, uint32_t prompt_rows, uint64_t now_ns);

 private:
  struct known {
    std::vector<double> rows_per_us;  // by choice; 0: not measured or not possible
    size_t best = 0;
    bool settled = false;
    uint64_t steps = 0;  // since it was settled
  };

  static uint32_t size_class(uint32_t decoding_rows, uint32_t prompt_rows);
  void enter(uint32_t size);
  void measure(size_t choice);
  void finish_probe(double rows_per_us);
  bool possible(size_t choice) const;
  void use(size_t choice);

  const schedule schedule_;
  std::map<uint32_t, known> by_size_;
  uint32_t size_ = 0;  // 0: no batch yet
  uint32_t strays_ = 0;
  size_t current_ = 0;
  bool probing_ = false;
  // The measurement under way.
  uint32_t settling_ = 0;
  uint32_t steps_left_ = 0;
  uint64_t begin_ns_ = 0;
  uint64_t rows_ = 0;
  uint64_t switches_ = 0;
};

}  // namespace troupe
