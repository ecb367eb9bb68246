#include "actors/coordinator.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>

namespace troupe {

namespace {

std::string describe(const join_request& request) {
  return request.host + " (process " + std::to_string(request.process) + ")";
}

}  // namespace

coordinator_actor::behavior_type coordinator_state::start(coordinator_actor::stateful_pointer<coordinator_state> self,
                                                          coordinator_environment environment) {
  self_ = self;
  environment_ = std::move(environment);
  slots_.resize(environment_.settings.nodes);
  profile_known_ = !environment_.choose_profile;
  self->set_down_handler([this](const caf::down_msg& message) { on_down(message); });
  last_tick_ = self->clock().now();
  self->delayed_send(self, std::chrono::milliseconds(environment_.settings.heartbeat_ms), tick{});
  show();
  return {
      [this](const join_request& message) { on_join(message); },
      [this](const node_ready& message) { on_ready(message); },
      [this](const node_failed& message) {
        if (message.node.value < slots_.size() && slots_[message.node.value].incarnation == message.incarnation)
          declare_dead(message.node.value, "it cannot load the model: " + message.message);
      },
      [this](const heartbeat& message) { on_heartbeat(message); },
      [this](const node_account& message) { on_account(message); },
      [this](const tick&) { on_tick(); },
  };
}

std::optional<uint16_t> coordinator_state::slot_for(const join_request& message) const {
  if (message.wanted_node >= 0) return static_cast<uint16_t>(message.wanted_node);
  for (uint16_t node = 0; node < slots_.size(); ++node)
    if (slots_[node].state != phase::empty && slots_[node].request.process_token == message.process_token) return node;
  for (uint16_t node = 0; node < slots_.size(); ++node)
    if (slots_[node].state == phase::empty) return node;
  return std::nullopt;
}

void coordinator_state::refuse(const join_request& message, const std::string& reason) {
  spdlog::warn("refused {}: {}", describe(message), reason);
  tell(message.node, join_refused{reason});
}

void coordinator_state::on_join(const join_request& message) {
  if (!message.node) return;
  if (message.wanted_node >= static_cast<int32_t>(slots_.size()))
    return refuse(message, "there is no node " + std::to_string(message.wanted_node) +
                               "; this cluster has nodes 0 to " + std::to_string(slots_.size() - 1));
  const auto chosen = slot_for(message);
  if (!chosen)
    return refuse(message, "all " + std::to_string(slots_.size()) +
                               " nodes of this cluster are here; raise `nodes` in the head's configuration");
  const uint16_t node = *chosen;
  if (profile_known_ && (message.profiles >> static_cast<unsigned>(environment_.settings.profile) & 1U) == 0)
    return refuse(message, "this machine cannot run numeric profile " +
                               std::string(kernels::name(environment_.settings.profile)) +
                               ", which the cluster uses; set `profile: f32` to include it");
  auto& place = slots_[node];
  if (place.state != phase::empty && place.request.process_token == message.process_token) {
    if (place.state == phase::loading) accept(node);  // our answer was lost
    return;
  }
  if (place.state != phase::empty) declare_dead(node, "another process joined in its place");
  place.state = phase::asked;
  place.request = message;
  place.handle = environment_.bind(node_id{node}, message.node);
  place.last_heard = self_->clock().now();
  self_->monitor(caf::actor_cast<caf::actor>(place.handle));
  if (!profile_known_) choose_profile();
  if (profile_known_) accept(node);
  show();
}

// Waits until every node has asked, then takes the best profile that all have.
void coordinator_state::choose_profile() {
  uint8_t common = 0xff;
  for (const auto& place : slots_) {
    if (place.state == phase::empty) return;
    common &= place.request.profiles;
  }
  auto& settings = environment_.settings;
  const bool amx = (common >> static_cast<unsigned>(kernels::profile::amx_bf16) & 1U) != 0;
  settings.profile = amx ? kernels::profile::amx_bf16 : kernels::profile::f32;
  const auto travels = amx ? wire_dtype::bf16 : wire_dtype::f32;
  if (environment_.default_dispatch) settings.dispatch = travels;
  if (environment_.default_combine) settings.combine = travels;
  profile_known_ = true;
  for (uint16_t node = 0; node < slots_.size(); ++node)
    if (slots_[node].state == phase::asked) accept(node);
}

placement_request coordinator_state::placement_question() const {
  const auto& config = *environment_.config;
  placement_request question;
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) question.moe_layers.push_back(config.is_moe(layer));
  question.experts = static_cast<uint32_t>(config.n_routed_experts);
  question.redundant_replicas = environment_.settings.redundant_replicas;
  for (uint16_t node = 0; node < slots_.size(); ++node) question.nodes.push_back({node, 0, true});
  return question;
}

void coordinator_state::accept(uint16_t node) {
  auto& place = slots_[node];
  if (place.state == phase::loading) {
    tell(place.handle, join_accepted{node_id{node}, place.incarnation, environment_.settings.to_json(), placement_});
    return;
  }
  if (placement_.layers == 0) {
    const auto question = placement_question();
    const auto policy = find_placement_policy(environment_.settings.placement);
    if (!policy) return refuse(place.request, policy.failure().message);
    const auto plan = (*policy)(question);
    if (!plan) return refuse(place.request, plan.failure().message);
    if (auto valid = validate(plan->table, question); !valid) return refuse(place.request, valid.failure().message);
    placement_ = plan->table;
    spdlog::info("placement {}", plan->reason);
  }
  place.incarnation = incarnation_id{++incarnations_};
  place.state = phase::loading;
  tell(place.handle, join_accepted{node_id{node}, place.incarnation, environment_.settings.to_json(), placement_});
}

void coordinator_state::on_ready(const node_ready& message) {
  if (message.node.value >= slots_.size()) return;
  auto& place = slots_[message.node.value];
  if (place.state != phase::loading || place.incarnation != message.incarnation) return;
  place.state = phase::live;
  place.ready = message;
  place.last_heard = self_->clock().now();
  place.acknowledged = epoch_id{};
  spdlog::info("node {} of {} is ready, incarnation {}", message.node.value, describe(place.request),
               message.incarnation.value);
  publish();
}

void coordinator_state::on_heartbeat(const heartbeat& message) {
  if (message.node.value >= slots_.size()) return;
  auto& place = slots_[message.node.value];
  if (place.incarnation != message.incarnation || place.state != phase::live) return;
  place.last_heard = self_->clock().now();
  place.acknowledged = message.epoch;
  place.counters = message.counters;
  show();
}

void coordinator_state::on_account(const node_account& message) {
  constexpr size_t words = layer_account::word_count;
  constexpr size_t layers_max = 1024;
  if (message.node.value >= slots_.size() || message.layers.size() % words != 0 ||
      message.layers.size() > layers_max * words)
    return;
  auto& place = slots_[message.node.value];
  if (place.incarnation != message.incarnation) return;
  place.schedule = message.schedule;
  place.layers.clear();
  for (size_t at = 0; at < message.layers.size(); at += words)
    place.layers.push_back(layer_account::from_words(std::span<const uint64_t, words>(&message.layers[at], words)));
}

void coordinator_state::on_down(const caf::down_msg& message) {
  for (uint16_t node = 0; node < slots_.size(); ++node) {
    const auto& place = slots_[node];
    if (place.state != phase::empty && place.handle && place.handle->address() == message.source)
      declare_dead(node, "its connection broke");
  }
}

void coordinator_state::on_tick() {
  const auto period = std::chrono::milliseconds(environment_.settings.heartbeat_ms);
  self_->delayed_send(self_, period, tick{});
  const auto now = self_->clock().now();
  // If this actor itself did not run for a while, heartbeats wait unread: that is not the nodes' silence.
  const auto stalled = now - last_tick_ - period;
  if (stalled > period)
    for (auto& place : slots_) place.last_heard += stalled;
  last_tick_ = now;
  const auto verdict = std::chrono::milliseconds(environment_.settings.verdict_ms);
  for (uint16_t node = 0; node < slots_.size(); ++node)
    if (slots_[node].state == phase::live && now - slots_[node].last_heard > verdict)
      declare_dead(node, "it was silent for " + std::to_string(environment_.settings.verdict_ms) + " ms");
}

void coordinator_state::declare_dead(uint16_t node, const std::string& reason) {
  auto& place = slots_[node];
  const bool was_live = place.state == phase::live;
  spdlog::warn("node {} incarnation {} is dead: {}", node, place.incarnation.value, reason);
  // If it lives after all, it learns that it is no longer served.
  tell(place.handle, node_retired{node_id{node}, place.incarnation});
  if (place.handle) self_->demonitor(caf::actor_cast<caf::actor>(place.handle));
  const uint64_t process = place.request.process;
  place = slot{};
  environment_.board->write([](board_snapshot& board) { ++board.nodes_lost; });
  if (environment_.on_dead) environment_.on_dead(node_id{node}, process);
  if (was_live) publish();
  show();
}

void coordinator_state::publish() {
  const bool all_live =
      std::all_of(slots_.begin(), slots_.end(), [](const slot& place) { return place.state == phase::live; });
  if (!formed_ && !all_live) {
    show();
    return;
  }
  ++epoch_.value;
  cluster_view view;
  view.epoch = epoch_;
  view.oldest_epoch = epoch_;
  view.placement = placement_;
  for (uint16_t node = 0; node < slots_.size(); ++node) {
    const auto& place = slots_[node];
    if (place.state != phase::live) continue;
    view.members.push_back({node_id{node}, place.incarnation, place.ready.wire_address, place.ready.shards});
    // A node that has acknowledged nothing yet has sent no dispatch either.
    if (place.acknowledged != epoch_id{}) view.oldest_epoch = std::min(view.oldest_epoch, place.acknowledged);
  }
  view.api_server = environment_.api_server;
  view.prefill_balancer = environment_.prefill_balancer;
  view.decode_balancer = environment_.decode_balancer;
  // The head binds shard handles to its links; each node does so for the front actors' handles.
  auto local = std::make_shared<cluster_view>(view);
  for (auto& member : local->members)
    for (auto& shard : member.shards) shard = environment_.bind(member.node, shard);
  for (const auto& front : {view.api_server, view.prefill_balancer, view.decode_balancer}) tell(front, view_ptr(local));
  // Nodes talk to each other over the wire only; they get no handles to each other's actors.
  for (auto& member : view.members) member.shards.clear();
  for (const auto& place : slots_)
    if (place.state == phase::live) tell(place.handle, view);
  show();
  formed_ = true;
}

void coordinator_state::show() {
  environment_.board->write([this](board_snapshot& board) {
    board.epoch = epoch_.value;
    board.serving = epoch_.value > 0;
    board.settings = environment_.settings;
    board.nodes.clear();
    for (uint16_t node = 0; node < slots_.size(); ++node) {
      const auto& place = slots_[node];
      static constexpr const char* states[] = {"waiting", "joining", "loading", "live"};
      board.nodes.push_back({node, states[static_cast<size_t>(place.state)], place.incarnation.value,
                             place.request.host, place.request.process, place.ready.device, place.ready.threads,
                             static_cast<uint32_t>(place.ready.shards.size()), place.ready.experts,
                             place.ready.weight_bytes, place.ready.kv_bytes, place.counters, place.schedule,
                             place.layers});
    }
  });
}

}  // namespace troupe
