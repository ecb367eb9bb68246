// attention_shard: one data-parallel rank.
//
// Holds embedding, attention, shared-expert, router and head weights, the sequences that run here and
// their paged latent KV. It batches continuously, lets its micro-batches take turns on the device,
// sends one dispatch for each destination device and layer, adds the answers in a fixed order and
// samples. What it knows of a request can be rebuilt from what the `api_server` owns.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "actors/busy_reminders.hpp"
#include "actors/messages.hpp"
#include "runtime/model/forward.hpp"
#include "runtime/serving/dispatch_ledger.hpp"
#include "runtime/serving/pair_counts.hpp"
#include "runtime/serving/schedule_chooser.hpp"
#include "runtime/serving/settings.hpp"
#include "runtime/serving/shard_step.hpp"
#include "runtime/wire/wire.hpp"

namespace troupe {

using attention_shard_actor =
    caf::typed_actor<caf::reacts_to<start_sequence>, caf::reacts_to<cancel_sequence>,
                     caf::reacts_to<sequence_placement>, caf::reacts_to<view_ptr>, caf::reacts_to<micro_batch>,
                     caf::reacts_to<stage_done>, caf::reacts_to<start_steps>, caf::reacts_to<tick>>;

// What a shard is given when it is spawned; everything outlives it.
struct shard_environment {
  shard_ref self;
  serving_settings settings;
  std::shared_ptr<const model_config> config;
  std::shared_ptr<const shard_weights> weights;
  std::shared_ptr<device> compute;
  std::shared_ptr<wire> data_plane;
  std::shared_ptr<buffer_pool> dispatch_pool;
  caf::actor node;  // hears `shard_report`
};

class attention_shard_state {
 public:
  static constexpr const char* name = "attention_shard";

  attention_shard_actor::behavior_type start(attention_shard_actor::stateful_pointer<attention_shard_state> self,
                                             shard_environment environment);

 private:
  // A set of pairs that no live replica can serve, waiting for a view that changes that.
  struct stranded_pairs {
    uint32_t step_index = 0;
    uint64_t step_number = 0;
    std::vector<owed_pair> pairs;
    steady_time since;
  };

  // A step that holds the earlier part of a prompt; its keys of a layer must be there first.
  struct followed_step {
    uint32_t step_index = 0;
    uint64_t step_number = 0;
  };

  void on_start(const start_sequence& message);
  void on_cancel(const cancel_sequence& message);
  void on_placement(const sequence_placement& message);
  void on_view(const view_ptr& view);
  void on_answer(const micro_batch& answer);
  void on_stage_done(const stage_done& done);
  void on_tick();

  void start_idle_steps();
  void cut_anew();
  void go_on(uint32_t step_index);
  bool must_wait(uint32_t step_index) const;
  void let_followers_go(uint32_t step_index);
  void open_layer(uint32_t step_index);
  void dispatch_pairs(uint32_t step_index, std::span<const owed_pair> pairs, std::optional<uint16_t> avoid,
                      uint32_t attempt);
  void send_unsent();
  void send(outstanding_dispatch& entry);
  void file(const micro_batch& answer, outstanding_dispatch& entry);
  void refused(const micro_batch& answer, outstanding_dispatch& entry);
  void advance(uint32_t step_index);
  void finish_step(uint32_t step_index);
  void fail_rows(uint32_t step_index, std::span<const owed_pair> pairs, const error& cause);
  void retry_stranded();
  void end_sequence(request_id request, uint32_t attempt);
  void tell_epoch();
  void report();
  void tell_co_activation();
  void keep_reminded();
  bool busy();
  uint32_t ticks_per_round() const;
  steady_time now() const;

  attention_shard_actor::stateful_pointer<attention_shard_state> self_ = nullptr;
  shard_environment environment_;
  std::optional<forward_pass> forward_;
  std::optional<kv_cache> cache_;
  std::optional<sequence_batcher> batcher_;
  std::vector<std::unique_ptr<shard_step>> steps_;
  std::vector<std::vector<followed_step>> follows_;  // by step
  std::vector<bool> held_back_;                      // by step: its next stage waits for what it follows
  std::vector<uint32_t> parts_;                      // working list, reused
  std::vector<double> ahead_;                        // by step: the part of its layers ahead; reused
  std::optional<schedule_chooser> chooser_;
  std::optional<pair_counts> co_activation_;  // where `rebalance.co_activation` asks for it
  uint32_t ticks_ = 0;
  busy_reminders reminders_;
  dispatch_ledger ledger_;
  replica_router router_;
  view_ptr view_;
  std::vector<stranded_pairs> stranded_;
  std::vector<owed_pair> pairs_;       // working list, reused
  std::vector<uint64_t> keys_;         // of the pairs to be dispatched; working list, reused
  std::vector<uint16_t> payload_row_;  // row of the micro-batch -> row of a payload, reused
  bool cutting_anew_ = false;          // no step starts until all have ended
  bool starting_ = false;              // a `start_steps` is on its way
  uint64_t told_epoch_ = 0;            // the last report's
  uint64_t steps_started_ = 0;
  uint64_t tokens_ = 0;
};

}  // namespace troupe
