// The head of a live cluster: its actors, its own node, and the API in front of them.
//
// Owns an actor system. With more than one node it publishes the coordinator for others to join. Used
// from one thread, except the `api_backend` part, which any thread may call.
#pragma once

#include <caf/all.hpp>

#include <atomic>
#include <functional>
#include <memory>

#include "actors/node.hpp"
#include "apps/cluster/front.hpp"
#include "apps/cluster/head_config.hpp"
#include "apps/cluster/live_seams.hpp"

namespace troupe {

struct head_callbacks {
  // A node was declared dead; its process may still exist. On the coordinator's thread; must not block.
  std::function<void(node_id, uint64_t process)> on_dead;
  // The head's own node cannot go on: because it was declared dead (retired: call `restart_node`), or
  // for good (a model that does not load, say; the process should end). On an actor's thread.
  std::function<void(const error& reason, node_end how)> on_ended;
  // A node has been drained: its process ends by itself. On the coordinator's thread; must not block.
  std::function<void(node_id)> on_released;
  // The head's own node has its weights: for measurements that share them. On its loader's thread.
  std::function<void(const loaded_weights&)> on_loaded;
};

class head final : public api_backend {
 public:
  // Reads the model's configuration and tokenizer, spawns the actors and opens the join port.
  // Fails: what the model's files are refused for; unavailable (the port is taken).
  static result<std::unique_ptr<head>> start(head_config config, head_callbacks callbacks);
  ~head() override;

  uint16_t join_port() const { return join_port_; }
  // Joins with the head's own node again, as a new incarnation. Requires: it ended.
  void restart_node();

  // Goes on with the timeline of the head's own node, or pauses it.
  void record_trace(bool recording) { seams_.back()->record_trace(recording); }

  // Every node is in the first view.
  bool serving() const { return front_.board->read().serving; }
  board_snapshot board() const { return front_.board->read(); }
  const head_config& config() const { return config_; }
  std::shared_ptr<const model_config> model() const { return model_; }

  uint64_t submit(generation_request request, generation_sink sink) override;
  void cancel(uint64_t request) override;
  std::string model_name() const override { return config_.model_name; }
  uint64_t model_created_s() const override { return created_s_; }
  bool healthy() const override;
  std::string cluster_json() const override;
  std::string metrics_text() const override;
  std::string steps_text() const override;
  std::string load_csv() const override;

 private:
  head() = default;
  void spawn_node();
  void end_node();

  head_config config_;
  head_callbacks callbacks_;
  std::shared_ptr<const model_config> model_;
  std::unique_ptr<caf::actor_system_config> system_config_;
  std::unique_ptr<caf::actor_system> system_;
  front_actors front_;
  std::unique_ptr<background_worker> behind_;       // asks the placement policy
  std::vector<std::shared_ptr<live_seams>> seams_;  // the last is in use; all outlive the actors
  node_actor node_;
  uint16_t join_port_ = 0;
  uint64_t created_s_ = 0;
  std::atomic<uint64_t> tickets_{0};
};

// Options that every live actor system of ours shares; `network` loads the middleman.
std::unique_ptr<caf::actor_system_config> make_system_config(bool network);

// The part of a node's environment that describes this machine and process.
node_environment describe_process(int32_t wanted_node);

}  // namespace troupe
