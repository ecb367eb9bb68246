// Every control message, grouped by edge, and their CAF type ids.
//
// A message is a plain struct with one `inspect`. All are one-way: an answer is a message of its own to
// a handle that the answerer got from the cluster view, so that simulated links can carry, delay and
// drop each. No floating-point number passes through CAF's serializer (docs/caf.md): bits travel as
// integers. Messages marked local never leave their process and carry pointers.
#pragma once

#include <caf/all.hpp>

#include <memory>
#include <string>
#include <vector>

#include "actors/api.hpp"
#include "runtime/device/device.hpp"
#include "runtime/ids.hpp"
#include "runtime/placement/placement.hpp"
#include "runtime/placement/policy.hpp"
#include "runtime/serving/load_collector.hpp"
#include "runtime/wire/micro_batch.hpp"

namespace troupe {

// One attention shard of one incarnation of a node.
struct shard_ref {
  node_id node;
  incarnation_id incarnation;
  uint16_t slot = 0;  // endpoint slot on its node

  bool operator==(const shard_ref&) const = default;
  template <class Inspector>
  friend auto inspect(Inspector& f, shard_ref& m) {
    return f(m.node, m.incarnation, m.slot);
  }
};

// --- front end -> api_server (local) ---

struct submit_generation {
  uint64_t ticket = 0;  // the front end's id, for `cancel_generation`
  std::shared_ptr<const generation_request> request;
  std::shared_ptr<const generation_sink> sink;
};
struct cancel_generation {
  uint64_t ticket = 0;
};

// --- api_server <-> prefill_balancer ---

struct route_prompt {
  request_id request;
  uint32_t attempt = 0;
  uint32_t prompt_tokens = 0;
  template <class Inspector>
  friend auto inspect(Inspector& f, route_prompt& m) {
    return f(m.request, m.attempt, m.prompt_tokens);
  }
};
// The balancer's answer; `found` is false when no shard is live (ask again after the next view).
struct prompt_route {
  request_id request;
  uint32_t attempt = 0;
  bool found = false;
  shard_ref shard;
  template <class Inspector>
  friend auto inspect(Inspector& f, prompt_route& m) {
    return f(m.request, m.attempt, m.found, m.shard);
  }
};

// --- api_server -> attention_shard ---

struct start_sequence {
  request_id request;
  uint32_t attempt = 0;
  std::vector<int32_t> tokens;  // prompt, then what earlier attempts emitted
  uint32_t prompt_tokens = 0;   // of `tokens`; the rest is replay
  uint32_t max_tokens = 0;      // completion tokens in all, replayed ones included
  uint64_t seed = 0;
  uint32_t temperature_bits = 0;  // float bits
  uint32_t top_p_bits = 0;        // float bits
  bool ignore_eos = false;
  template <class Inspector>
  friend auto inspect(Inspector& f, start_sequence& m) {
    return f(m.request, m.attempt, m.tokens, m.prompt_tokens, m.max_tokens, m.seed, m.temperature_bits, m.top_p_bits,
             m.ignore_eos);
  }
};
struct cancel_sequence {
  request_id request;
  uint32_t attempt = 0;
  template <class Inspector>
  friend auto inspect(Inspector& f, cancel_sequence& m) {
    return f(m.request, m.attempt);
  }
};

// --- attention_shard -> api_server ---

struct emitted_token {
  request_id request;
  uint32_t attempt = 0;
  uint32_t index = 0;  // of the completion, from 0
  int32_t token = 0;
  uint32_t logprob_bits = 0;  // float bits
  uint8_t finish = 0;         // 0: goes on, 1: end-of-sequence token, 2: max_tokens reached
  template <class Inspector>
  friend auto inspect(Inspector& f, emitted_token& m) {
    return f(m.request, m.attempt, m.index, m.token, m.logprob_bits, m.finish);
  }
};
// All tokens that one micro-batch produced.
struct tokens_emitted {
  shard_ref shard;
  std::vector<emitted_token> tokens;
  template <class Inspector>
  friend auto inspect(Inspector& f, tokens_emitted& m) {
    return f(m.shard, m.tokens);
  }
};
struct sequence_failed {
  request_id request;
  uint32_t attempt = 0;
  uint8_t code = 0;  // errc
  std::string message;
  template <class Inspector>
  friend auto inspect(Inspector& f, sequence_failed& m) {
    return f(m.request, m.attempt, m.code, m.message);
  }
};

// --- attention_shard <-> decode_balancer ---

// A prompt is computed and its KV is at `holder`; where shall it decode?
struct place_sequence {
  request_id request;
  uint32_t attempt = 0;
  shard_ref holder;
  uint32_t kv_tokens = 0;
  template <class Inspector>
  friend auto inspect(Inspector& f, place_sequence& m) {
    return f(m.request, m.attempt, m.holder, m.kv_tokens);
  }
};
struct sequence_placement {
  request_id request;
  uint32_t attempt = 0;
  shard_ref shard;
  template <class Inspector>
  friend auto inspect(Inspector& f, sequence_placement& m) {
    return f(m.request, m.attempt, m.shard);
  }
};
// To the API server: the decode balancer wants a sequence to go on at another shard, which computes it anew.
struct sequence_moved {
  request_id request;
  uint32_t attempt = 0;
  shard_ref shard;  // where to
  template <class Inspector>
  friend auto inspect(Inspector& f, sequence_moved& m) {
    return f(m.request, m.attempt, m.shard);
  }
};
// To both balancers: a sequence left the shard (finished, cancelled or failed).
struct sequence_ended {
  request_id request;
  uint32_t attempt = 0;
  shard_ref shard;
  template <class Inspector>
  friend auto inspect(Inspector& f, sequence_ended& m) {
    return f(m.request, m.attempt, m.shard);
  }
};

// --- node -> coordinator ---

struct join_request {
  int32_t wanted_node = -1;    // -1: any free one
  uint32_t process_token = 0;  // drawn by the process; tells two attempts apart
  uint8_t profiles = 0;        // bit p: the machine can run numeric profile p
  std::string host;            // for people
  uint64_t process = 0;        // operating-system id, for people
  caf::strong_actor_ptr node;
  template <class Inspector>
  friend auto inspect(Inspector& f, join_request& m) {
    return f(m.wanted_node, m.process_token, m.profiles, m.host, m.process, m.node);
  }
};
struct node_ready {
  node_id node;
  incarnation_id incarnation;
  std::string wire_address;
  std::vector<caf::strong_actor_ptr> shards;
  std::string device;  // description, for people
  uint32_t threads = 0;
  uint32_t experts = 0;  // replicas held
  uint64_t weight_bytes = 0;
  uint64_t kv_bytes = 0;
  template <class Inspector>
  friend auto inspect(Inspector& f, node_ready& m) {
    return f(m.node, m.incarnation, m.wire_address, m.shards, m.device, m.threads, m.experts, m.weight_bytes,
             m.kv_bytes);
  }
};
struct node_failed {  // loading went wrong; the sentence is for the user
  node_id node;
  incarnation_id incarnation;
  std::string message;
  template <class Inspector>
  friend auto inspect(Inspector& f, node_failed& m) {
    return f(m.node, m.incarnation, m.message);
  }
};
struct node_counters {
  uint64_t steps = 0;
  uint64_t tokens = 0;
  uint64_t sequences = 0;
  uint64_t kv_blocks_free = 0;
  uint64_t kv_blocks = 0;
  uint64_t dispatches_sent = 0;
  uint64_t dispatches_resent = 0;
  uint64_t rows_received = 0;
  uint64_t weight_passes = 0;
  uint64_t device_busy_ns = 0;
  uint64_t wire_bytes_sent = 0;
  // Of time since the node's start, for the bound of a run (docs/schedules.md).
  uint64_t cpu_ns = 0;         // of the process, wire and actors included; in simulation the device's busy time
  uint64_t link_busy_ns = 0;   // of the busiest outgoing link whose bandwidth is known
  uint64_t chain_ns = 0;       // of the longest chain of stages and transfers among the shards' micro-batches
  uint64_t micro_batches = 0;  // that the schedule uses now, the most of any shard
  uint64_t schedule_switches = 0;
  // What a healthy node returns to when it has nothing to do.
  uint64_t buffers_in_use = 0;  // bytes of data-plane buffers that are referenced
  uint64_t wire_bytes_in_flight = 0;
  uint64_t wire_connections = 0;
  uint64_t wire_reconnections = 0;
  // Expert replicas that are here now, those that nobody asks any more until they are freed included.
  uint64_t replicas = 0;
  uint64_t replica_bytes = 0;
  uint64_t dispatches_refused = 0;  // by its host: a retired epoch, or an expert that is not here
  template <class Inspector>
  friend auto inspect(Inspector& f, node_counters& m) {
    return f(m.steps, m.tokens, m.sequences, m.kv_blocks_free, m.kv_blocks, m.dispatches_sent, m.dispatches_resent,
             m.rows_received, m.weight_passes, m.device_busy_ns, m.wire_bytes_sent, m.cpu_ns, m.link_busy_ns,
             m.chain_ns, m.micro_batches, m.schedule_switches, m.buffers_in_use, m.wire_bytes_in_flight,
             m.wire_connections, m.wire_reconnections, m.replicas, m.replica_bytes, m.dispatches_refused);
  }
};
struct heartbeat {
  node_id node;
  incarnation_id incarnation;
  epoch_id epoch;  // newest epoch that all of the node's shards have taken up
  node_counters counters;
  template <class Inspector>
  friend auto inspect(Inspector& f, heartbeat& m) {
    return f(m.node, m.incarnation, m.epoch, m.counters);
  }
};

// Where the time of a node's steps went, for people; less often than heartbeats.
struct node_account {
  node_id node;
  incarnation_id incarnation;
  std::string schedule;          // what the first shard's schedule uses and why
  std::vector<uint64_t> layers;  // `layer_account::words` of each layer
  template <class Inspector>
  friend auto inspect(Inspector& f, node_account& m) {
    return f(m.node, m.incarnation, m.schedule, m.layers);
  }
};

// Asks for a node's retirement: it gets nothing new, hands over what it has, and its process ends.
struct drain_request {
  node_id node;
  caf::strong_actor_ptr asker;  // hears `drain_answer`; may be null
  template <class Inspector>
  friend auto inspect(Inspector& f, drain_request& m) {
    return f(m.node, m.asker);
  }
};
struct drain_answer {
  bool accepted = false;
  std::string message;  // a sentence
  template <class Inspector>
  friend auto inspect(Inspector& f, drain_answer& m) {
    return f(m.accepted, m.message);
  }
};

// --- coordinator -> node ---

struct join_accepted {
  node_id node;
  incarnation_id incarnation;
  std::string settings;       // serving_settings as JSON
  placement_table placement;  // which experts to load before `node_ready`
  template <class Inspector>
  friend auto inspect(Inspector& f, join_accepted& m) {
    return f(m.node, m.incarnation, m.settings, m.placement);
  }
};
struct join_refused {
  std::string reason;
  template <class Inspector>
  friend auto inspect(Inspector& f, join_refused& m) {
    return f(m.reason);
  }
};
// This incarnation was declared dead and is no longer served; join again as a new one.
struct node_retired {
  node_id node;
  incarnation_id incarnation;
  template <class Inspector>
  friend auto inspect(Inspector& f, node_retired& m) {
    return f(m.node, m.incarnation);
  }
};

// The node has been drained: nobody needs it, and its process ends.
struct node_released {
  node_id node;
  incarnation_id incarnation;
  template <class Inspector>
  friend auto inspect(Inspector& f, node_released& m) {
    return f(m.node, m.incarnation);
  }
};

struct cluster_member {
  node_id node;
  incarnation_id incarnation;
  std::string wire_address;
  bool draining = false;                      // starts no sequence, and gets no expert
  caf::strong_actor_ptr handle;               // of the node; for the head's actors only
  std::vector<caf::strong_actor_ptr> shards;  // shard i has endpoint slot 1 + i
  template <class Inspector>
  friend auto inspect(Inspector& f, cluster_member& m) {
    return f(m.node, m.incarnation, m.wire_address, m.draining, m.handle, m.shards);
  }
};
// Membership and placement of one epoch. The coordinator is its only writer.
struct cluster_view {
  epoch_id epoch;
  epoch_id oldest_epoch;  // dispatches of older epochs are refused
  std::vector<cluster_member> members;
  caf::strong_actor_ptr api_server;
  caf::strong_actor_ptr decode_balancer;
  caf::strong_actor_ptr prefill_balancer;
  caf::strong_actor_ptr expert_balancer;
  caf::strong_actor_ptr coordinator;  // for the head's actors only
  placement_table placement;
  template <class Inspector>
  friend auto inspect(Inspector& f, cluster_view& m) {
    return f(m.epoch, m.oldest_epoch, m.members, m.api_server, m.decode_balancer, m.prefill_balancer, m.expert_balancer,
             m.coordinator, m.placement);
  }

  const cluster_member* find(node_id node) const {
    for (const auto& member : members)
      if (member.node == node) return &member;
    return nullptr;
  }
  bool has(const shard_ref& shard) const {
    const auto* member = find(shard.node);
    return member != nullptr && member->incarnation == shard.incarnation;
  }
  // Whether sequences may start or go on there.
  bool serves(const shard_ref& shard) const { return has(shard) && !find(shard.node)->draining; }
};

// --- expert_balancer -> node, which passes it on to its expert host ---

struct load_replica {
  uint32_t layer = 0;
  uint32_t expert = 0;
  // The node to fetch its weights from; not `from_peer`: from the checkpoint.
  bool from_peer = false;
  node_id source;
  incarnation_id source_incarnation;
  template <class Inspector>
  friend auto inspect(Inspector& f, load_replica& m) {
    return f(m.layer, m.expert, m.from_peer, m.source, m.source_incarnation);
  }
};
// Frees a replica that no shard asks any more, or stops its loading.
struct drop_replica {
  uint32_t layer = 0;
  uint32_t expert = 0;
  template <class Inspector>
  friend auto inspect(Inspector& f, drop_replica& m) {
    return f(m.layer, m.expert);
  }
};

// --- node -> expert_balancer ---

enum class replica_outcome : uint8_t { ready = 0, failed = 1, dropped = 2 };

struct replica_report {
  node_id node;
  incarnation_id incarnation;
  uint32_t layer = 0;
  uint32_t expert = 0;
  uint8_t outcome = 0;  // replica_outcome
  uint64_t bytes = 0;   // of its weights
  std::string message;  // why it failed, a sentence
  template <class Inspector>
  friend auto inspect(Inspector& f, replica_report& m) {
    return f(m.node, m.incarnation, m.layer, m.expert, m.outcome, m.bytes, m.message);
  }
};
// How often loads are told.
inline constexpr uint32_t heartbeats_per_load = 5;

// Rows that a node's experts have received since its incarnation's start.
struct expert_load {
  node_id node;
  incarnation_id incarnation;
  received_rows received;
  template <class Inspector>
  friend auto inspect(Inspector& f, expert_load& m) {
    return f(m.node, m.incarnation, m.received);
  }
};

// --- attention_shard -> expert_balancer ---

// Pairs of experts that a shard's tokens chose since it told last: one message a layer.
struct co_activation {
  shard_ref shard;
  chosen_pairs chosen;
  template <class Inspector>
  friend auto inspect(Inspector& f, co_activation& m) {
    return f(m.shard, m.chosen);
  }
};

// --- local: expert_balancer <-> coordinator ---

// Publishes a placement as the next epoch, unless another epoch than `base` is in force by now: then the
// balancer has another view on its way and asks anew.
struct publish_placement {
  epoch_id base;
  std::shared_ptr<const placement_table> table;
};
// All shards of the view have taken up this epoch.
struct epoch_acknowledged {
  epoch_id epoch;
};

// --- local: a policy's thread -> expert_balancer ---

struct plan_made {
  uint64_t number = 0;
  std::shared_ptr<const result<placement_plan>> plan;
};

// --- local: node, coordinator -> the actors of their process ---

// A view whose handles are bound to this node's side of the links.
using view_ptr = std::shared_ptr<const cluster_view>;

// --- local: attention_shard, expert_host -> node ---

struct shard_report {
  uint16_t slot = 0;
  epoch_id epoch;  // taken up
  node_counters counters;
  std::string schedule_reason;  // what the schedule uses and why
};
struct host_report {
  node_counters counters;
  std::shared_ptr<const received_rows> received;  // as in `expert_load`; null: as before
};

// --- local: expert_host -> itself, and a loader -> expert_host ---

// A replica that is being fetched may ask for its next piece.
struct fetch_on {
  uint32_t number = 0;
};
struct expert_weights;
struct replica_loaded {
  uint32_t number = 0;
  std::shared_ptr<const result<std::shared_ptr<const expert_weights>>> weights;
};

// --- local: device -> attention_shard, expert_host; expert_host -> expert ---

struct stage_done {
  uint32_t micro_batch = 0;
  stage_kind kind{};  // attn for any attention stage or the head, or shared
};
// attention_shard -> itself
struct start_steps {};
struct dispatch_done {
  dispatch_work* work = nullptr;
};
struct expert_rows {
  dispatch_work* work = nullptr;
  uint32_t begin = 0;  // order[begin, end) of the work
  uint32_t end = 0;
};

// --- local: a node's loader -> node ---

struct loaded_weights;  // actors/node_seams.hpp
struct load_done {
  std::shared_ptr<loaded_weights> weights;
};

// A periodic reminder to oneself. An actor that changes its period starts another chain and ignores
// what is left of the old one.
struct tick {
  uint32_t chain = 0;
};

// Sends without waiting and without a sender; a handle that the view does not name yet is silence.
template <class Message>
void tell(const caf::strong_actor_ptr& to, Message&& message) {
  if (to) caf::anon_send(caf::actor_cast<caf::actor>(to), std::forward<Message>(message));
}

}  // namespace troupe

CAF_BEGIN_TYPE_ID_BLOCK(troupe, caf::first_custom_type_id)
// api_server <-> prefill_balancer
CAF_ADD_TYPE_ID(troupe, (troupe::route_prompt))
CAF_ADD_TYPE_ID(troupe, (troupe::prompt_route))
// api_server <-> attention_shard
CAF_ADD_TYPE_ID(troupe, (troupe::start_sequence))
CAF_ADD_TYPE_ID(troupe, (troupe::cancel_sequence))
CAF_ADD_TYPE_ID(troupe, (troupe::tokens_emitted))
CAF_ADD_TYPE_ID(troupe, (troupe::sequence_failed))
// attention_shard <-> decode_balancer
CAF_ADD_TYPE_ID(troupe, (troupe::place_sequence))
CAF_ADD_TYPE_ID(troupe, (troupe::sequence_placement))
CAF_ADD_TYPE_ID(troupe, (troupe::sequence_moved))
CAF_ADD_TYPE_ID(troupe, (troupe::sequence_ended))
// node <-> coordinator
CAF_ADD_TYPE_ID(troupe, (troupe::join_request))
CAF_ADD_TYPE_ID(troupe, (troupe::node_ready))
CAF_ADD_TYPE_ID(troupe, (troupe::node_failed))
CAF_ADD_TYPE_ID(troupe, (troupe::heartbeat))
CAF_ADD_TYPE_ID(troupe, (troupe::node_account))
CAF_ADD_TYPE_ID(troupe, (troupe::join_accepted))
CAF_ADD_TYPE_ID(troupe, (troupe::join_refused))
CAF_ADD_TYPE_ID(troupe, (troupe::node_retired))
CAF_ADD_TYPE_ID(troupe, (troupe::node_released))
CAF_ADD_TYPE_ID(troupe, (troupe::cluster_view))
CAF_ADD_TYPE_ID(troupe, (troupe::drain_request))
CAF_ADD_TYPE_ID(troupe, (troupe::drain_answer))
// node <-> expert_balancer
CAF_ADD_TYPE_ID(troupe, (troupe::load_replica))
CAF_ADD_TYPE_ID(troupe, (troupe::drop_replica))
CAF_ADD_TYPE_ID(troupe, (troupe::replica_report))
CAF_ADD_TYPE_ID(troupe, (troupe::expert_load))
// attention_shard -> expert_balancer
CAF_ADD_TYPE_ID(troupe, (troupe::co_activation))
CAF_END_TYPE_ID_BLOCK(troupe)

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::submit_generation)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::cancel_generation)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::view_ptr)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::publish_placement)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::epoch_acknowledged)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::plan_made)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::fetch_on)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::replica_loaded)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::shard_report)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::host_report)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::stage_done)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::start_steps)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::dispatch_done)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::expert_rows)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::load_done)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::tick)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::micro_batch)
