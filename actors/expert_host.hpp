// expert_host: the experts of one device.
//
// Splits an arriving dispatch among the experts that it names, joins their outputs into one combine and
// sends it back, and counts the rows it received (the load that placement policies minimise). It
// refuses what it cannot serve with a status that says why, and never leaves a dispatch unanswered.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "actors/expert.hpp"
#include "actors/messages.hpp"
#include "runtime/model/config.hpp"
#include "runtime/serving/settings.hpp"
#include "runtime/wire/wire.hpp"

namespace troupe {

using expert_host_actor = caf::typed_actor<caf::reacts_to<micro_batch>, caf::reacts_to<dispatch_done>,
                                           caf::reacts_to<view_ptr>, caf::reacts_to<tick>>;

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
  caf::actor owner;  // the node; hears `host_report`
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
  std::unique_ptr<dispatch_work> take_work();

  expert_host_actor::stateful_pointer<expert_host_state> self_ = nullptr;
  caf::actor address_;
  expert_host_environment environment_;
  std::vector<expert_actor> experts_;  // [layers * experts], null where not hosted
  std::vector<bool> hosted_;
  std::vector<uint32_t> counts_;  // working list, reused: pairs of each expert
  std::vector<std::unique_ptr<dispatch_work>> running_;
  std::vector<std::unique_ptr<dispatch_work>> spare_;
  std::deque<micro_batch> waiting_;                       // dispatches without room for their combine
  std::vector<std::pair<endpoint, micro_batch>> unsent_;  // answers the wire had no credit for
  epoch_id epoch_;
  epoch_id oldest_epoch_;
  uint64_t rows_received_ = 0;
};

}  // namespace troupe
