// prefill_balancer and decode_balancer: one each a cluster.
//
// They answer from a table of what each shard has been given and not yet finished; the choice is a pure
// function (runtime/serving/shard_load.hpp). A shard that leaves the view takes its load with it. Each tells the
// board how far from level its shards are. While every shard has both roles, a decode balancer that chooses
// another shard than the one that holds the KV has the sequence replayed there, once; by default it stays.
#pragma once

#include <map>
#include <vector>

#include "actors/cluster_board.hpp"
#include "actors/messages.hpp"
#include "runtime/serving/shard_load.hpp"

namespace troupe {

using prefill_balancer_actor =
    caf::typed_actor<caf::reacts_to<route_prompt>, caf::reacts_to<sequence_ended>, caf::reacts_to<view_ptr>>;
using decode_balancer_actor =
    caf::typed_actor<caf::reacts_to<place_sequence>, caf::reacts_to<sequence_ended>, caf::reacts_to<view_ptr>>;

// Which shards exist and what each holds.
class shard_table {
 public:
  void update(const cluster_view& view);
  bool empty() const { return shards_.empty(); }
  const std::vector<shard_ref>& shards() const { return shards_; }
  std::span<const shard_load> loads() const { return loads_; }
  const caf::strong_actor_ptr& handle(size_t index) const { return handles_[index]; }
  std::optional<size_t> index(const shard_ref& shard) const;

  // Charges a request to a shard, instead of an older attempt of it.
  void charge(request_id request, uint32_t attempt, size_t index, uint32_t tokens);
  // Where a request was charged last.
  std::optional<size_t> charged_to(request_id request) const;
  // Frees what that attempt holds; unknown ones are ignored.
  void release(request_id request, uint32_t attempt);

 private:
  struct charged {
    uint32_t attempt = 0;
    shard_ref shard;
    uint32_t tokens = 0;
  };
  void add(const charged& entry, int sign);

  std::vector<shard_ref> shards_;
  std::vector<caf::strong_actor_ptr> handles_;
  std::vector<shard_load> loads_;
  std::map<request_id, charged> requests_;
};

struct balancer_state {
  shard_table table;
  view_ptr view;
  uint64_t turns = 0;  // choices made

  board_balance balance() const { return {turns, table.shards().size(), imbalance_of(table.loads())}; }
};

struct prefill_balancer_state : balancer_state {
  static constexpr const char* name = "prefill_balancer";
};
struct decode_balancer_state : balancer_state {
  static constexpr const char* name = "decode_balancer";
};

// `choose` is the balancer's policy; `board` hears of every change.
prefill_balancer_actor::behavior_type prefill_balancer(
    prefill_balancer_actor::stateful_pointer<prefill_balancer_state> self, prefill_choice choose,
    std::shared_ptr<cluster_board> board);
decode_balancer_actor::behavior_type decode_balancer(
    decode_balancer_actor::stateful_pointer<decode_balancer_state> self, decode_choice choose,
    std::shared_ptr<cluster_board> board);

}  // namespace troupe
