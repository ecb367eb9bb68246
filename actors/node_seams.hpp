// What a node gets from the place it runs in: device, wire, loader and links.
//
// The four seams behind one interface, so that the `node` actor is the same live and in simulation.
// Live: worker threads, UCX and a loader thread. Simulation: modelled devices and wires in virtual
// time, and weights that all simulated nodes share.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "actors/expert_host.hpp"
#include "actors/messages.hpp"
#include "runtime/model/weights.hpp"
#include "runtime/serving/node_memory.hpp"
#include "runtime/serving/settings.hpp"
#include "runtime/wire/wire.hpp"

namespace troupe {

// What the loader brings: everything in the layout of the device's kernels, or the reason why not.
struct loaded_weights {
  result<void> outcome;
  std::shared_ptr<const model_config> config;
  std::shared_ptr<const shard_weights> shard;
  std::vector<hosted_expert> experts;
};

enum class node_end : uint8_t {
  failed,    // for good
  retired,   // declared dead: it may join again as a new incarnation
  released,  // drained: nobody needs it
};

// Weights of pieces under way from one node at most.
constexpr uint64_t bulk_pool_bytes = uint64_t{8} << 20U;

class node_seams {
 public:
  virtual ~node_seams() = default;

  // Creates device and wire. Called once, before `load`.
  // Fails: unsupported (profile), unavailable (the wire cannot listen).
  virtual result<void> open(node_id node, incarnation_id incarnation, const serving_settings& settings,
                            const model_config& config) = 0;
  // The model's config.json. Fails: as load_model_config.
  virtual result<std::shared_ptr<const model_config>> read_config(const serving_settings& settings) = 0;
  // Loads in the background and calls `done` once, on any thread.
  virtual void load(const serving_settings& settings, std::shared_ptr<const model_config> config,
                    std::vector<std::pair<uint32_t, uint32_t>> experts,
                    std::function<void(std::shared_ptr<loaded_weights>)> done) = 0;

  // Reads one routed expert in the background and calls `done` once, on any thread, unless the node ends first.
  // Requires: `load` has called its `done`.
  virtual void load_expert(uint32_t layer, uint32_t expert,
                           std::function<void(result<std::shared_ptr<const expert_weights>>)> done) = 0;

  virtual std::shared_ptr<device> compute() = 0;
  virtual std::shared_ptr<wire> data_plane() = 0;
  virtual std::shared_ptr<buffer_pool> dispatch_pool() = 0;
  virtual std::shared_ptr<buffer_pool> combine_pool() = 0;
  virtual std::shared_ptr<buffer_pool> bulk_pool() = 0;  // of pieces of weights that are sent

  // CPU time that the node's process has taken since its start, wire and actors included; in simulation
  // the device's busy time.
  virtual uint64_t cpu_ns() const = 0;

  // Where peers reach this node's wire.
  virtual std::string wire_address() const = 0;
  // Makes a peer reachable, or gives an incarnation of it up for good. Asynchronous.
  virtual void connect(const cluster_member& peer) = 0;
  virtual void give_up(node_id peer, incarnation_id incarnation) = 0;

  // A peer's control handle as this node reaches it (in simulation: through the modelled link).
  virtual caf::strong_actor_ptr bind(node_id peer, const caf::strong_actor_ptr& handle) = 0;

  // The node's end, with a sentence: refused or failed to load; or retired; or released, having been drained.
  // The process decides what follows.
  virtual void ended(const error& reason, node_end how) = 0;
};

}  // namespace troupe
