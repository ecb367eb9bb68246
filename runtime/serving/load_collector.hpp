// The window of load that is running: what expert hosts and attention shards tell, added up.
//
// Owned by the expert balancer; one thread. Rows are told as sums since a node's start, so that a report may be
// lost; pairs as differences, since sums of all shards would take much memory here: those of a lost report are
// missing. Nothing that a peer tells is trusted: what does not fit the model and the cluster is left out.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "runtime/ids.hpp"
#include "runtime/placement/load.hpp"
#include "runtime/serving/pair_counts.hpp"

namespace troupe {

// Rows that a node's experts have received since its start, as they travel. Experts that it never held are left out.
struct received_rows {
  std::vector<uint32_t> experts;  // layer * experts of a layer + expert, ascending
  std::vector<uint64_t> rows;     // [experts, sources]; [experts, 1] where sources are not told apart
  template <class Inspector>
  friend auto inspect(Inspector& f, received_rows& m) {
    return f(m.experts, m.rows);
  }
};

class load_collector {
 public:
  // `moe_layers` has an entry for each layer of the model. `sources`: shards that are told apart; 0: none.
  load_collector(const std::vector<bool>& moe_layers, uint32_t experts, uint32_t sources, bool co_activation);

  // Both return false, and add nothing, when what is told does not fit.
  bool add(node_id node, incarnation_id incarnation, const received_rows& told);
  bool add(const chosen_pairs& told);

  const load_window& window() const { return window_; }  // pairs are added when it ends
  // Ends the window and starts an empty one.
  load_window take();

 private:
  struct node_rows {
    incarnation_id incarnation;
    received_rows received;  // as last told
  };

  load_window empty_window() const;
  bool fits(const received_rows& told) const;

  uint32_t experts_;
  uint32_t sources_;
  std::vector<int32_t> moe_layer_;  // of each layer of the model; -1: dense
  size_t entries_ = 0;              // MoE layers x experts
  std::map<node_id, node_rows> told_;
  load_window window_;
  std::optional<pair_counts> pairs_;
};

// Bytes that a window takes.
size_t bytes_of(const load_window& window);

}  // namespace troupe
