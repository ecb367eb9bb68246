// Carrying a placement out while it serves: which replica to load, publish or drop next.
//
// A replica that is to come is loaded; once it is ready, the next table names it. One that is to go is left
// out of a table and stays where it is until every shard has acknowledged that table's epoch; then it is
// dropped. An expert's new replicas are published before its old ones go, and no node ever holds more than
// `replicas_max`, whatever is on its way. What is left to do is the difference between the published table
// and the target, so another target may be set at any time. Decisions only: the expert balancer, who owns
// this, sends the orders and reports what became of them.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "runtime/placement/placement.hpp"

namespace troupe {

// A replica of an expert at a node. Layers are the model's.
struct replica_place {
  uint32_t layer = 0;
  uint32_t expert = 0;
  uint16_t node = 0;

  auto operator<=>(const replica_place&) const = default;
};

struct serving_node {
  uint16_t node = 0;
  uint32_t incarnation = 0;
  bool draining = false;  // gets nothing new

  bool operator==(const serving_node&) const = default;
};

struct execution_limits {
  uint32_t replicas_max = 0;  // of all layers that a node may hold, those on their way and those not yet freed included
  uint32_t loads_per_node = 1;  // that a node carries out at a time
};

class plan_execution {
 public:
  struct load_order {
    replica_place what;
    std::optional<uint16_t> from;  // a node that serves a replica; else the checkpoint
  };
  struct orders {
    std::vector<load_order> loads;
    std::vector<replica_place> drops;
    // To be published next; nothing further is, until `see` hears of a newer epoch.
    std::optional<placement_table> publish;
    uint32_t abandoned = 0;  // moves given up since no node has room for any of them
  };

  // An epoch was published. What nodes that left had under way is forgotten; what their table entries say stays.
  void see(uint64_t epoch, const placement_table& published, std::span<const serving_node> live);
  // All shards have taken up an epoch and wait for no answer under an older one.
  void acknowledged(uint64_t epoch) { acknowledged_ = std::max(acknowledged_, epoch); }

  // Sets the target; layers of `layers_first` go first, in that order. Returns how many moves of the target
  // before were left undone. Requires: the shape of the published table.
  uint32_t pursue(const placement_table& target, const execution_limits& limits,
                  const std::vector<uint32_t>& layers_first);

  // What became of orders. A replica that failed to load leaves its expert where it was, and a drop is ordered for
  // whatever the node has of it.
  void loaded(const replica_place& place);
  void failed(const replica_place& place);
  void dropped(const replica_place& place);

  // `may_publish` false: what is ready waits, and goes with what else is ready by the next time.
  orders next(bool may_publish = true);

  bool idle() const { return adds_.empty() && drops_.empty() && held_.empty(); }
  uint32_t moves_left() const { return static_cast<uint32_t>(adds_.size()); }
  bool loading(const replica_place& place) const;
  // Replicas at a node, of all layers: published, on their way, and not yet freed.
  uint32_t replicas_at(uint16_t node) const;

 private:
  enum class state : uint8_t {
    loading,
    ready,
    named,
    failed,
    retiring,
    dropping
  };  // named: by the table that is being published
  struct held_replica {
    state what = state::loading;
    uint64_t epoch = 0;            // retiring: of the table that left it out
    std::optional<uint16_t> from;  // loading
  };
  using lists = std::vector<std::vector<uint16_t>>;  // [layers * experts], nodes

  size_t at(const replica_place& place) const { return size_t{place.layer} * experts_ + place.expert; }
  const serving_node* find_live(uint16_t node) const;
  bool wanted(const replica_place& place) const;
  void compare();
  void order_loads(orders& out);
  void order_drops(orders& out);
  // The table with all that is ready, without what may go; nothing when it is the published one.
  std::optional<placement_table> next_table(bool pressed) const;
  std::optional<uint16_t> source_of(const replica_place& place) const;

  uint32_t layers_ = 0;
  uint32_t experts_ = 0;
  uint64_t epoch_ = 0;
  uint64_t acknowledged_ = 0;
  bool publishing_ = false;
  execution_limits limits_;
  std::vector<serving_node> live_;
  lists published_;
  lists target_;
  std::vector<uint32_t> order_;                 // layers, those first that come first
  std::vector<replica_place> adds_;             // wanted and not published, at live nodes
  std::vector<replica_place> drops_;            // published and not wanted, at live nodes
  std::map<replica_place, held_replica> held_;  // what is at live nodes, or on its way, and not published
};

}  // namespace troupe
