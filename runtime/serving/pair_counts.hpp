// Co-activation: how many tokens chose both of two experts of a layer.
//
// An expert host sees its own rows only, so an attention shard counts, where it knows a token's whole top-k, and
// tells the expert balancer what it has counted since it told last; the balancer adds up what shards tell. Each
// owns one of these, whose memory is taken at the start. One thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/compute.hpp"
#include "runtime/placement/load.hpp"

namespace troupe {

// Pairs a < b of one layer are numbered b * (b - 1) / 2 + a.
constexpr uint32_t pair_number(uint32_t a, uint32_t b) { return b * (b - 1) / 2 + a; }

// The pairs of one layer that tokens chose, as they travel; at most experts * (experts - 1) / 2 of them.
struct chosen_pairs {
  uint32_t layer = 0;            // of the model
  std::vector<uint32_t> pairs;   // numbers, ascending
  std::vector<uint32_t> tokens;  // [pairs]
  template <class Inspector>
  friend auto inspect(Inspector& f, chosen_pairs& m) {
    return f(m.layer, m.pairs, m.tokens);
  }
};

class pair_counts {
 public:
  // Takes 2 * experts * (experts - 1) bytes for each MoE layer: 7.6 MB for 58 layers of 256 experts.
  pair_counts(const std::vector<bool>& moe_layers, uint32_t experts);

  // Counts each pair of each token of a micro-batch once. Allocates nothing.
  // Requires: a MoE layer; `routes` is [tokens, top_k], the experts of a token distinct and below `experts`.
  void count(uint32_t layer, std::span<const kernels::routed_expert> routes, size_t top_k);
  // Adds what a shard told. Returns false, and adds nothing, when it is none of this model's layers or pairs.
  bool add(const chosen_pairs& told);

  uint32_t layers() const { return static_cast<uint32_t>(tokens_.size()); }  // of the model
  // What was counted in a layer since it was taken last; it starts anew from zero. Empty for a dense layer.
  chosen_pairs take(uint32_t layer);
  // The same of all layers as pairs of a load, whose layers are the MoE layers, numbered from 0.
  std::vector<expert_pair> take_pairs();

 private:
  uint32_t pairs_ = 0;                         // of a layer
  std::vector<std::vector<uint32_t>> tokens_;  // [layers of the model][pairs]; empty for a dense layer
};

}  // namespace troupe
