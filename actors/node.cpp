#include "actors/node.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>

namespace troupe {

namespace {

constexpr auto join_period = std::chrono::milliseconds(500);
constexpr node_id head_node{0};

}  // namespace

node_actor::behavior_type node_state::start(node_actor::stateful_pointer<node_state> self,
                                            node_environment environment) {
  self_ = self;
  environment_ = std::move(environment);
  self->set_down_handler([this](const caf::down_msg&) {
    if (phase_ != phase::ended) end({errc::unavailable, "the connection to the head broke"}, node_end::failed);
  });
  self->monitor(caf::actor_cast<caf::actor>(environment_.coordinator));
  self->send(self, tick{});
  return {
      [this](const join_accepted& message) { on_accepted(message); },
      [this](const join_refused& message) {
        if (phase_ == phase::joining) end({errc::invalid_argument, message.reason}, node_end::failed);
      },
      [this](const node_retired& message) {
        if (phase_ == phase::serving && message.incarnation == incarnation_)
          end({errc::unavailable, "the coordinator declared this node dead; it joins again as a new incarnation"},
              node_end::retired);
      },
      [this](const node_released& message) {
        if (phase_ == phase::serving && message.incarnation == incarnation_)
          end({errc::cancelled, "this node has been drained"}, node_end::released);
      },
      [this](const cluster_view& view) { on_view(view); },
      [this](const load_replica& message) {
        if (phase_ == phase::serving) self_->send(host_, message);
      },
      [this](const drop_replica& message) {
        if (phase_ == phase::serving) self_->send(host_, message);
      },
      [this](const replica_report& report) { tell(expert_balancer_, report); },
      [this](const load_done& message) { on_loaded(message); },
      [this](const shard_report& report) { shard_reports_[report.slot] = report; },
      [this](const host_report& report) {
        host_report_ = report;
        if (report.received) received_ = report.received;
      },
      [this](const tick& reminder) { on_tick(reminder); },
  };
}

void node_state::on_accepted(const join_accepted& message) {
  if (phase_ != phase::joining) return;
  auto settings = parse_settings(message.settings);
  if (!settings) return end(settings.failure(), node_end::failed);
  settings_ = *std::move(settings);
  auto config = environment_.seams->read_config(settings_);
  if (!config) return end(config.failure(), node_end::failed);
  config_ = *config;
  node_ = message.node;
  incarnation_ = message.incarnation;
  if (auto opened = environment_.seams->open(node_, incarnation_, settings_, *config_); !opened)
    return end(opened.failure(), node_end::failed);
  const auto& table = message.placement;
  if (table.layers != static_cast<uint32_t>(config_->num_hidden_layers) ||
      table.experts != static_cast<uint32_t>(config_->n_routed_experts))
    return end({errc::invalid_argument,
                "the model in " + settings_.model + " differs from the head's; every node needs the same files"},
               node_end::failed);
  std::vector<std::pair<uint32_t, uint32_t>> experts;
  for (uint32_t layer = 0; layer < table.layers; ++layer)
    for (uint32_t expert = 0; expert < table.experts; ++expert) {
      const auto nodes = table.replicas(layer, expert);
      if (std::find(nodes.begin(), nodes.end(), node_.value) != nodes.end()) experts.emplace_back(layer, expert);
    }
  phase_ = phase::loading;
  environment_.seams->load(settings_, config_, std::move(experts),
                           [address = caf::actor_cast<caf::actor>(self_)](std::shared_ptr<loaded_weights> weights) {
                             caf::anon_send(address, load_done{std::move(weights)});
                           });
}

void node_state::on_loaded(const load_done& message) {
  if (phase_ != phase::loading) return;
  auto& weights = *message.weights;
  if (!weights.outcome) {
    tell(environment_.coordinator, node_failed{node_, incarnation_, weights.outcome.failure().message});
    return end(weights.outcome.failure(), node_end::failed);
  }
  phase_ = phase::serving;
  cpu_before_ns_ = environment_.seams->cpu_ns();  // loading is not serving
  spawn_children(weights);
  tell(environment_.coordinator, ready_);
  ++chain_;
  remind({});  // heartbeats begin at once
}

void node_state::remind(std::chrono::milliseconds delay) { self_->delayed_send(self_, delay, tick{chain_}); }

void node_state::spawn_children(loaded_weights& weights) {
  auto& seams = *environment_.seams;
  const auto address = caf::actor_cast<caf::actor>(self_);
  ready_.node = node_;
  ready_.incarnation = incarnation_;
  ready_.wire_address = seams.wire_address();
  ready_.device = seams.compute()->description();
  ready_.threads = settings_.threads_per_node;
  ready_.experts = static_cast<uint32_t>(weights.experts.size());
  ready_.weight_bytes = weights.shard->bytes();
  for (const auto& hosted : weights.experts) ready_.weight_bytes += hosted.weights->bytes();
  const auto layout = seams.compute()->math().layout_kv(config_->kv_lora_rank, config_->qk_rope_head_dim);
  ready_.kv_bytes = uint64_t{settings_.shards_per_node} * settings_.kv_blocks * layout.block_bytes *
                    static_cast<uint64_t>(config_->num_hidden_layers);
  host_ = self_->spawn<caf::linked>(
      [](expert_host_actor::stateful_pointer<expert_host_state> self, expert_host_environment environment) {
        return self->state.start(self, std::move(environment));
      },
      expert_host_environment{node_, incarnation_, settings_, config_, std::move(weights.experts), seams.compute(),
                              seams.data_plane(), seams.combine_pool(), seams.bulk_pool(), address,
                              [parts = environment_.seams](uint32_t layer, uint32_t expert, auto done) {
                                parts->load_expert(layer, expert, std::move(done));
                              }});
  for (uint16_t i = 0; i < settings_.shards_per_node; ++i) {
    const shard_ref ref{node_, incarnation_, static_cast<uint16_t>(1 + i)};
    shards_.push_back(self_->spawn<caf::linked>(
        [](attention_shard_actor::stateful_pointer<attention_shard_state> self, shard_environment environment) {
          return self->state.start(self, std::move(environment));
        },
        shard_environment{ref, settings_, config_, weights.shard, seams.compute(), seams.data_plane(),
                          seams.dispatch_pool(), address}));
    ready_.shards.push_back(caf::actor_cast<caf::strong_actor_ptr>(shards_.back()));
  }
}

void node_state::on_view(const cluster_view& view) {
  if (phase_ != phase::serving || view.epoch <= epoch_) return;
  const auto* own = view.find(node_);
  if (own == nullptr || own->incarnation != incarnation_) {
    if (in_view_) end({errc::unavailable, "the coordinator left this node out of its view"}, node_end::retired);
    return;
  }
  in_view_ = true;
  epoch_ = view.epoch;
  auto& seams = *environment_.seams;
  auto bound = std::make_shared<cluster_view>(view);
  // The front actors live beside the coordinator, on node 0's process.
  for (auto* front : {&bound->api_server, &bound->prefill_balancer, &bound->decode_balancer, &bound->expert_balancer})
    *front = seams.bind(head_node, *front);
  expert_balancer_ = bound->expert_balancer;
  for (auto& member : bound->members) {
    if (member.node == node_) continue;
    auto& known = peers_[member.node];
    if (known == member.incarnation) continue;
    if (known != incarnation_id{}) seams.give_up(member.node, known);
    known = member.incarnation;
    seams.connect(member);
  }
  std::erase_if(peers_, [&](const auto& peer) {
    const auto* member = view.find(peer.first);
    if (member != nullptr) return false;
    seams.give_up(peer.first, peer.second);
    return true;
  });
  const view_ptr shared = std::move(bound);
  self_->send(host_, shared);
  for (const auto& shard : shards_) self_->send(shard, shared);
}

void node_state::on_tick(const tick& reminder) {
  if (reminder.chain != chain_) return;
  switch (phase_) {
    case phase::joining:
      tell(environment_.coordinator,
           join_request{environment_.wanted_node, environment_.process_token, environment_.profiles, environment_.host,
                        environment_.process, caf::actor_cast<caf::strong_actor_ptr>(self_)});
      remind(join_period);
      return;
    case phase::loading: return;  // the loader's end starts another chain
    case phase::serving: {
      if (!in_view_) tell(environment_.coordinator, ready_);
      heartbeat beat{node_, incarnation_, epoch_, totals()};
      // None is taken up before every shard has said so.
      if (shard_reports_.size() < shards_.size()) beat.epoch = epoch_id{};
      for (const auto& [slot, report] : shard_reports_) beat.epoch = std::min(beat.epoch, report.epoch);
      tell(environment_.coordinator, beat);
      if (++heartbeats_ % heartbeats_per_load == 1) {
        tell(environment_.coordinator, account());
        if (received_) tell(expert_balancer_, expert_load{node_, incarnation_, *received_});
      }
      remind(std::chrono::milliseconds(settings_.heartbeat_ms));
      return;
    }
    case phase::ended: return;
  }
}

node_counters node_state::totals() const {
  node_counters sum = host_report_.counters;
  for (const auto& [slot, report] : shard_reports_) {
    const auto& counters = report.counters;
    sum.steps += counters.steps;
    sum.tokens += counters.tokens;
    sum.sequences += counters.sequences;
    sum.kv_blocks_free += counters.kv_blocks_free;
    sum.kv_blocks += counters.kv_blocks;
    sum.dispatches_sent += counters.dispatches_sent;
    sum.dispatches_resent += counters.dispatches_resent;
    sum.chain_ns = std::max(sum.chain_ns, counters.chain_ns);
    sum.micro_batches = std::max(sum.micro_batches, counters.micro_batches);
    sum.schedule_switches += counters.schedule_switches;
  }
  const auto device = environment_.seams->compute()->statistics();
  sum.weight_passes = device.weight_passes;
  sum.device_busy_ns = device.busy_ns;
  const auto wire = environment_.seams->data_plane()->statistics();
  sum.wire_bytes_sent = wire.bytes_sent;
  sum.link_busy_ns = wire.link_busy_ns;
  sum.wire_bytes_in_flight = wire.bytes_in_flight;
  sum.wire_connections = wire.connections;
  sum.wire_reconnections = wire.reconnections;
  for (const auto& pool : {environment_.seams->dispatch_pool(), environment_.seams->combine_pool()})
    sum.buffers_in_use += pool->bytes_in_use();
  sum.cpu_ns = environment_.seams->cpu_ns() - cpu_before_ns_;
  return sum;
}

node_account node_state::account() const {
  node_account message{node_, incarnation_, {}, {}};
  if (!shard_reports_.empty()) message.schedule = shard_reports_.begin()->second.schedule_reason;
  for (const auto& layer : environment_.seams->compute()->account().layers()) {
    const auto words = layer.words();
    message.layers.insert(message.layers.end(), words.begin(), words.end());
  }
  return message;
}

void node_state::end(const error& reason, node_end how) {
  phase_ = phase::ended;
  environment_.seams->ended(reason, how);
}

}  // namespace troupe
