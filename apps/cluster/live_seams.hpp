// A node's seams in the real world: worker threads, UCX, and a loader thread.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "actors/node_seams.hpp"
#include "runtime/accounting/timeline.hpp"
#include "runtime/background_worker.hpp"
#include "runtime/device/cpu_device.hpp"
#include "runtime/wire/shaped_wire.hpp"
#include "runtime/wire/ucx_wire.hpp"

namespace troupe {

struct live_seams_options {
  std::string wire_host = "127.0.0.1";  // address that peers reach this node's wire at
  std::function<void(const error& reason, node_end how)> on_ended;
  std::function<void(const loaded_weights&)> on_loaded;  // may be empty; on the loader's thread
  std::string trace;                                     // file for the node's timeline, appended to; empty: none
};

class live_seams final : public node_seams {
 public:
  explicit live_seams(live_seams_options options) : options_(std::move(options)) {}
  ~live_seams() override;

  // The node's actors are of this system, which may end after `close`. Call before the node's actor begins.
  void serve(caf::actor_system& system) { system_ = &system; }

  // Goes on with the timeline, if there is one, or pauses it; it begins recording. Any thread.
  void record_trace(bool recording);

  // Stops the device and detaches the actors; no completion or delivery follows, and a node that is only
  // joining gets no device any more. Then the actors may end. Any thread.
  void close();

  result<void> open(node_id node, incarnation_id incarnation, const serving_settings& settings,
                    const model_config& config) override;
  result<std::shared_ptr<const model_config>> read_config(const serving_settings& settings) override;
  void load(const serving_settings& settings, std::shared_ptr<const model_config> config,
            std::vector<std::pair<uint32_t, uint32_t>> experts,
            std::function<void(std::shared_ptr<loaded_weights>)> done) override;
  void load_expert(uint32_t layer, uint32_t expert,
                   std::function<void(result<std::shared_ptr<const expert_weights>>)> done) override;
  std::shared_ptr<device> compute() override { return device_; }
  std::shared_ptr<wire> data_plane() override { return wire_; }
  std::shared_ptr<buffer_pool> dispatch_pool() override { return dispatch_pool_; }
  std::shared_ptr<buffer_pool> combine_pool() override { return combine_pool_; }
  std::shared_ptr<buffer_pool> bulk_pool() override { return bulk_pool_; }
  uint64_t cpu_ns() const override;
  std::string wire_address() const override;
  void connect(const cluster_member& peer) override;
  void give_up(node_id peer, incarnation_id incarnation) override;
  caf::strong_actor_ptr bind(node_id, const caf::strong_actor_ptr& handle) override { return handle; }
  void ended(const error& reason, node_end how) override;

 private:
  void cut_connections(const std::stop_token& stop, uint32_t period_ms, uint16_t node, uint32_t nodes);

  live_seams_options options_;
  caf::actor_system* system_ = nullptr;
  std::mutex mutex_;       // of what `open` and `load` (an actor's thread) set and `close` reads
  bool recording_ = true;  // into `timeline_`
  bool closed_ = false;    // then nothing below is set any more
  std::mutex closing_;     // of `close`
  std::string who_;        // "node 3", for lines a person reads
  std::vector<int> cpus_;  // of the compute threads; empty: any
  // Pools outlive the wire, and the wire every message: declared first, destroyed last.
  std::shared_ptr<buffer_pool> dispatch_pool_;
  std::shared_ptr<buffer_pool> combine_pool_;
  std::shared_ptr<buffer_pool> bulk_pool_;
  std::shared_ptr<buffer_pool> received_dispatches_;
  std::shared_ptr<buffer_pool> received_combines_;
  std::shared_ptr<buffer_pool> received_bulk_;
  std::unique_ptr<timeline> timeline_;  // outlives the device, which records into it
  std::shared_ptr<device> device_;
  std::shared_ptr<wire> wire_;
  ucx_wire* ucx_ = nullptr;  // wire_, or what a shaped wire_ is in front of
  std::thread loader_;
  std::string model_;  // directory
  std::shared_ptr<const model_config> config_;
  std::unique_ptr<background_worker> behind_;  // reads experts while the node serves
  std::shared_ptr<const checkpoint> files_;    // that thread's, opened when first needed
  std::jthread saboteur_;                      // cuts connections where the settings ask for it; ends before the wire
};

}  // namespace troupe
