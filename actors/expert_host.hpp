// expert_host: the experts of one device.
//
// Splits an arriving dispatch among the experts that it names, joins their outputs into one combine and
// sends it back, and counts the rows it received (the load that placement policies minimise). It
// refuses what it cannot serve with a status that says why, and never leaves a dispatch unanswered.
// Replicas come and go while it serves (expert_host_replicas.cpp): their weights are fetched from a peer's
// host piece by piece, or read from the checkpoint, within the bandwidth budget; one that goes is freed when
// the dispatches that were running have ended.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "actors/busy_reminders.hpp"
#include "actors/expert.hpp"
#include "actors/messages.hpp"
#include "runtime/model/config.hpp"
#include "runtime/serving/dispatch_ledger.hpp"
#include "runtime/serving/expert_transfer.hpp"
#include "runtime/serving/settings.hpp"
#include "runtime/wire/wire.hpp"

namespace troupe {

using expert_host_actor =
    caf::typed_actor<caf::reacts_to<micro_batch>, caf::reacts_to<dispatch_done>, caf::reacts_to<view_ptr>,
                     caf::reacts_to<load_replica>, caf::reacts_to<drop_replica>, caf::reacts_to<fetch_on>,
                     caf::reacts_to<replica_loaded>, caf::reacts_to<tick>>;

// One expert replica that this host supervises.
struct hosted_expert {
  uint32_t layer = 0;
  uint32_t expert = 0;
  std::shared_ptr<const expert_weights> weights;
};

struct expert_host_environment {
  node_id node;
  incarnation_id incarnation;
  serving_settings settings;
  std::shared_ptr<const model_config> config;
  std::vector<hosted_expert> experts;
  std::shared_ptr<device> compute;
  std::shared_ptr<wire> data_plane;
  std::shared_ptr<buffer_pool> combine_pool;
  std::shared_ptr<buffer_pool> bulk_pool;
  caf::actor owner;  // the node; hears `host_report` and `replica_report`
  // Reads one expert's weights in the background and calls `done` once, on any thread.
  std::function<void(uint32_t layer, uint32_t expert,
                     std::function<void(result<std::shared_ptr<const expert_weights>>)> done)>
      load_expert;
};

class expert_host_state : public dispatch_listener {
 public:
  static constexpr const char* name = "expert_host";
  static constexpr uint16_t slot = 0;  // endpoint slot on every node

  expert_host_actor::behavior_type start(expert_host_actor::stateful_pointer<expert_host_state> self,
                                         expert_host_environment environment);

  // Device's thread: a dispatch has all its outputs.
  void completed(dispatch_work& work) override;

 private:
  // A replica on its way here.
  struct arriving_replica {
    uint32_t number = 0;
    uint32_t layer = 0;
    uint32_t expert = 0;
    std::optional<endpoint> source;  // none: from the checkpoint
    std::unique_ptr<expert_arrival> arrival;
    std::shared_ptr<const expert_weights> weights;  // complete; ready when the budget allows
    steady_time began;
    steady_time asked;
    uint32_t tries = 0;
  };
  // A replica that goes, and what still computes with it.
  struct leaving_replica {
    uint32_t layer = 0;
    uint32_t expert = 0;
    std::vector<const dispatch_work*> running;
  };

  void on_load(const load_replica& message);
  void on_drop(const drop_replica& message);
  void on_bulk(const micro_batch& message);
  void on_piece(const micro_batch& message);
  void on_fetch(const fetch_on& message);
  void on_loaded(const replica_loaded& message);
  void ask(arriving_replica& arriving);
  void read_checkpoint(arriving_replica& arriving);
  void finish(arriving_replica& arriving, std::shared_ptr<const expert_weights> weights);
  void fail(const arriving_replica& arriving, const std::string& why);
  void look_after_arrivals();
  void let_go(const dispatch_work& ended);
  void free_replica(uint32_t layer, uint32_t expert);
  arriving_replica* find_arriving(uint32_t number);
  std::chrono::nanoseconds budget_time(uint64_t bytes) const;
  void host(uint32_t layer, uint32_t expert, std::shared_ptr<const expert_weights> weights);
  void report(uint32_t layer, uint32_t expert, replica_outcome outcome, uint64_t bytes, std::string message = {});
  size_t at(uint32_t layer, uint32_t expert) const {
    return size_t{layer} * static_cast<size_t>(environment_.config->n_routed_experts) + expert;
  }

  std::optional<uint32_t> source_of(const micro_batch_header& header) const;
  std::shared_ptr<const received_rows> received() const;
  void on_dispatch(const micro_batch& message);
  void on_done(dispatch_work& work);
  combine_status check(const micro_batch& message) const;
  bool begin(const micro_batch& message);
  void serve_waiting();
  micro_batch_header answer_header(const micro_batch& message) const;
  void refuse(const micro_batch& message, combine_status status);
  void send(const micro_batch_header& request, micro_batch answer);
  bool try_send(const endpoint& to, const micro_batch& answer);
  void send_unsent();
  void on_tick();
  void keep_reminded();
  std::unique_ptr<dispatch_work> take_work();

  expert_host_actor::stateful_pointer<expert_host_state> self_ = nullptr;
  caf::actor address_;
  expert_host_environment environment_;
  std::vector<expert_actor> experts_;                           // [layers * experts], null where not hosted
  std::vector<bool> hosted_;                                    // a replica is served; one that leaves is not
  std::vector<std::shared_ptr<const expert_weights>> weights_;  // beside `experts_`, for peers that fetch them
  std::vector<arriving_replica> arriving_;
  std::vector<leaving_replica> leaving_;
  uint32_t arrivals_ = 0;
  uint32_t sources_ = 1;                               // shards that are told apart
  std::vector<std::vector<uint64_t>> rows_by_source_;  // [layers * experts][sources], received; empty: never here
  std::vector<uint32_t> counts_;                       // working list, reused: pairs of each expert
  std::vector<std::unique_ptr<dispatch_work>> running_;
  std::vector<std::unique_ptr<dispatch_work>> spare_;
  std::deque<micro_batch> waiting_;                       // dispatches without room for their combine
  std::vector<std::pair<endpoint, micro_batch>> unsent_;  // answers the wire had no credit for
  epoch_id epoch_;
  epoch_id oldest_epoch_;
  uint64_t rows_received_ = 0;
  uint64_t refused_ = 0;
  uint64_t replicas_ = 0;
  uint64_t replica_bytes_ = 0;
  uint64_t ticks_ = 0;
  busy_reminders reminders_;
};

}  // namespace troupe
