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
  slots_.resize(environment_.settings.nodes_limit());
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
      [this](const publish_placement& message) { on_publish(message); },
      [this](const drain_request& message) { on_drain(message); },
      [this](const tick&) { on_tick(); },
  };
}

std::optional<uint16_t> coordinator_state::slot_for(const join_request& message) const {
  if (message.wanted_node >= 0) return static_cast<uint16_t>(message.wanted_node);
  for (uint16_t node = 0; node < slots_.size(); ++node)
    if (slots_[node].state != phase::empty && slots_[node].request.process_token == message.process_token) return node;
  // Whoever joins a formed cluster without a number takes a new one before that of a node that may come back.
  const auto first = static_cast<uint16_t>(formed_ ? environment_.settings.nodes : 0);
  for (size_t i = 0; i < slots_.size(); ++i)
    if (const auto node = static_cast<uint16_t>((first + i) % slots_.size()); slots_[node].state == phase::empty)
      return node;
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
                               " nodes of this cluster are here; raise `nodes_max` in the head's configuration");
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
  for (uint16_t node = 0; node < environment_.settings.nodes; ++node) {
    if (slots_[node].state == phase::empty) return;
    common &= slots_[node].request.profiles;
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
  for (uint16_t node = 0; node < environment_.settings.nodes; ++node) question.nodes.push_back({node, 0, true});
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
  tell_acknowledged();
  release_drained();
  show();
}

// A table of the expert balancer's, made from the view of epoch `base`.
void coordinator_state::on_publish(const publish_placement& message) {
  if (message.base != epoch_) return;
  placement_ = *message.table;
  publish();
}

// The oldest epoch that a live node may still send dispatches under; one that has acknowledged none counts.
void coordinator_state::tell_acknowledged() {
  epoch_id oldest = epoch_;
  for (const auto& place : slots_)
    if (place.state == phase::live) oldest = std::min(oldest, place.acknowledged);
  if (oldest <= acknowledged_) return;
  acknowledged_ = oldest;
  tell(environment_.expert_balancer, epoch_acknowledged{oldest});
}

void coordinator_state::on_drain(const drain_request& message) {
  const auto answer = [&](bool accepted, const std::string& sentence) {
    spdlog::info("drain: {}", sentence);
    tell(message.asker, drain_answer{accepted, sentence});
  };
  const uint16_t node = message.node.value;
  const auto text = "node " + std::to_string(node);
  if (node >= slots_.size() || slots_[node].state != phase::live || !formed_)
    return answer(false, text + " is not live, so there is nothing to drain");
  if (node == 0) return answer(false, "node 0 is the head's own; end `troupe serve` instead");
  auto& place = slots_[node];
  if (place.draining) return answer(true, text + " is being drained already");
  const auto others = std::count_if(slots_.begin(), slots_.end(), [&](const slot& one) {
    return &one != &place && one.state == phase::live && !one.draining;
  });
  if (others == 0) return answer(false, text + " is the last one that serves");
  place.draining = true;
  publish();
  place.draining_since = epoch_;
  answer(true, text + " is being drained; its process ends when it holds nothing any more");
}

// A node that drains goes when no table names it, nobody waits for it, and it has nothing left.
void coordinator_state::release_drained() {
  for (uint16_t node = 0; node < slots_.size(); ++node) {
    auto& place = slots_[node];
    if (place.state != phase::live || !place.draining || acknowledged_ != epoch_ ||
        place.acknowledged < place.draining_since || place.counters.sequences > 0 || place.counters.replicas > 0 ||
        std::find(placement_.nodes.begin(), placement_.nodes.end(), node) != placement_.nodes.end())
      continue;
    spdlog::info("node {} has been drained", node);
    if (environment_.on_released) environment_.on_released(node_id{node});
    self_->demonitor(caf::actor_cast<caf::actor>(place.handle));
    tell(place.handle, node_released{node_id{node}, place.incarnation});
    place = slot{};
    publish();
    return;  // others, when this epoch has been acknowledged
  }
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
  const bool all_live = std::all_of(slots_.begin(), slots_.begin() + environment_.settings.nodes,
                                    [](const slot& place) { return place.state == phase::live; });
  if (!formed_ && !all_live) {
    show();
    return;
  }
  ++epoch_.value;
  cluster_view view;
  view.epoch = epoch_;
  view.oldest_epoch = epoch_;
  view.placement = placement_;
  published_ = std::make_shared<const placement_table>(placement_);
  for (uint16_t node = 0; node < slots_.size(); ++node) {
    const auto& place = slots_[node];
    if (place.state != phase::live) continue;
    view.members.push_back(
        {node_id{node}, place.incarnation, place.ready.wire_address, place.draining, place.handle, place.ready.shards});
    // A node that has acknowledged nothing yet has sent no dispatch either.
    if (place.acknowledged != epoch_id{}) view.oldest_epoch = std::min(view.oldest_epoch, place.acknowledged);
  }
  view.api_server = environment_.api_server;
  view.prefill_balancer = environment_.prefill_balancer;
  view.decode_balancer = environment_.decode_balancer;
  view.expert_balancer = environment_.expert_balancer;
  // The head binds shard handles to its links; each node does so for the front actors' handles.
  auto local = std::make_shared<cluster_view>(view);
  for (auto& member : local->members)
    for (auto& shard : member.shards) shard = environment_.bind(member.node, shard);
  local->coordinator = caf::actor_cast<caf::strong_actor_ptr>(self_);
  for (const auto& front : {view.api_server, view.prefill_balancer, view.decode_balancer, view.expert_balancer})
    tell(front, view_ptr(local));
  // Nodes talk to each other over the wire only; they get no handles to each other's actors.
  for (auto& member : view.members) {
    member.shards.clear();
    member.handle = nullptr;
  }
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
    board.placement = published_;
    board.nodes.clear();
    size_t shown = slots_.size();  // numbers for nodes that may join are not
    while (shown > environment_.settings.nodes && slots_[shown - 1].state == phase::empty) --shown;
    for (uint16_t node = 0; node < shown; ++node) {
      const auto& place = slots_[node];
      static constexpr const char* states[] = {"waiting", "joining", "loading", "live"};
      board.nodes.push_back({node, place.draining ? "draining" : states[static_cast<size_t>(place.state)],
                             place.incarnation.value, place.request.host, place.request.process, place.ready.device,
                             place.ready.threads, static_cast<uint32_t>(place.ready.shards.size()), place.ready.experts,
                             place.ready.weight_bytes, place.ready.kv_bytes, place.counters, place.schedule,
                             place.layers});
    }
  });
}

}  // namespace troupe
