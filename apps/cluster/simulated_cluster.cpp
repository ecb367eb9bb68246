#include "apps/cluster/simulated_cluster.hpp"

#include <caf/actor_proxy.hpp>

namespace troupe {

namespace {

constexpr int head_label = 0;

// A handle to an actor of another simulated process: each message takes the control latency and is
// dropped when either end is dead.
class link_proxy final : public caf::actor_proxy {
 public:
  link_proxy(caf::actor_config& config, virtual_time* time, int from, int to, std::chrono::nanoseconds latency,
             caf::strong_actor_ptr target)
      : caf::actor_proxy(config), time_(time), from_(from), to_(to), latency_(latency), target_(std::move(target)) {}

  void enqueue(caf::mailbox_element_ptr what, caf::execution_unit*) override {
    if (time_->dead(from_) || time_->dead(to_)) return;
    auto carried = std::make_shared<caf::mailbox_element_ptr>(std::move(what));
    time_->after(latency_, to_, [target = target_, carried] {
      if (*carried) target->enqueue(std::move(*carried), nullptr);
    });
  }

  void kill_proxy(caf::execution_unit* unit, caf::error reason) override { cleanup(std::move(reason), unit); }

 private:
  virtual_time* time_;
  int from_;
  int to_;
  std::chrono::nanoseconds latency_;
  caf::strong_actor_ptr target_;
};

}  // namespace

result<std::shared_ptr<simulated_model>> simulated_model::load(const std::string& directory,
                                                               std::shared_ptr<const kernels::compute> math) {
  auto model = std::make_shared<simulated_model>();
  auto config = load_model_config(directory);
  if (!config) return config.failure();
  model->config = std::make_shared<model_config>(*std::move(config));
  auto files = checkpoint::open(directory);
  if (!files) return files.failure();
  model->files = std::make_shared<checkpoint>(*std::move(files));
  model->math = std::move(math);
  auto shard = load_shard_weights(*model->files, *model->config, *model->math, run_inline());
  if (!shard) return shard.failure();
  model->shard = *shard;
  for (int layer = 0; layer < model->config->num_hidden_layers; ++layer) {
    if (!model->config->is_moe(layer)) continue;
    for (int expert = 0; expert < model->config->n_routed_experts; ++expert) {
      auto weights = load_expert_weights(*model->files, *model->config, *model->math, layer, expert);
      if (!weights) return weights.failure();
      model->experts[{static_cast<uint32_t>(layer), static_cast<uint32_t>(expert)}] = *weights;
    }
  }
  return model;
}

class simulated_cluster::seams final : public node_seams {
 public:
  seams(simulated_cluster& cluster, int label) : cluster_(cluster), label_(label) {}

  result<void> open(node_id node, incarnation_id incarnation, const serving_settings& settings,
                    const model_config& config) override {
    const auto memory = size_node_memory(settings, config);
    dispatch_pool_ = std::make_shared<buffer_pool>(memory.dispatch_bytes);
    combine_pool_ = std::make_shared<buffer_pool>(memory.combine_bytes);
    bulk_pool_ = std::make_shared<buffer_pool>(bulk_pool_bytes);
    auto& time = cluster_.scheduler().time();
    device_ = std::make_shared<modelled_device>(time, label_, cluster_.model_->math, cluster_.options_.device,
                                                settings.schedule.ranks);
    wire_ = std::make_shared<modelled_wire>(cluster_.network_, label_, node.value, incarnation.value);
    return {};
  }
  result<std::shared_ptr<const model_config>> read_config(const serving_settings&) override {
    return cluster_.model_->config;
  }
  void load(const serving_settings&, std::shared_ptr<const model_config> config,
            std::vector<std::pair<uint32_t, uint32_t>> experts,
            std::function<void(std::shared_ptr<loaded_weights>)> done) override {
    auto loaded = std::make_shared<loaded_weights>();
    loaded->config = std::move(config);
    loaded->shard = cluster_.model_->shard;
    for (const auto& [layer, expert] : experts)
      loaded->experts.push_back({layer, expert, cluster_.model_->experts.at({layer, expert})});
    cluster_.scheduler().time().after(cluster_.options_.load_time, label_, [done, loaded] { done(loaded); });
  }
  void load_expert(uint32_t layer, uint32_t expert,
                   std::function<void(result<std::shared_ptr<const expert_weights>>)> done) override {
    const auto& readable = cluster_.options_.readable;
    result<std::shared_ptr<const expert_weights>> loaded = cluster_.model_->experts.at({layer, expert});
    if (readable && !readable(layer, expert)) loaded = error{errc::not_found, "the checkpoint has no such tensor"};
    cluster_.scheduler().time().after(cluster_.options_.load_time, label_,
                                      [done = std::move(done), loaded] { done(loaded); });
  }
  std::shared_ptr<device> compute() override { return device_; }
  std::shared_ptr<wire> data_plane() override { return wire_; }
  std::shared_ptr<buffer_pool> dispatch_pool() override { return dispatch_pool_; }
  std::shared_ptr<buffer_pool> combine_pool() override { return combine_pool_; }
  std::shared_ptr<buffer_pool> bulk_pool() override { return bulk_pool_; }
  uint64_t cpu_ns() const override { return device_->statistics().busy_ns; }
  std::string wire_address() const override { return "simulated:" + std::to_string(label_); }
  void connect(const cluster_member&) override {}
  void give_up(node_id, incarnation_id) override {}
  caf::strong_actor_ptr bind(node_id peer, const caf::strong_actor_ptr& handle) override {
    return cluster_.bind(label_, cluster_.label_of(peer), handle);
  }
  void ended(const error&, node_end how) override { released_ = how == node_end::released; }

  void close() {
    if (device_) device_->stop();
    if (wire_)
      for (uint16_t slot = 0; slot < 64; ++slot) wire_->detach(slot);
  }

  std::shared_ptr<modelled_device> device_;
  bool released_ = false;

 private:
  simulated_cluster& cluster_;
  int label_;
  std::shared_ptr<buffer_pool> dispatch_pool_;
  std::shared_ptr<buffer_pool> combine_pool_;
  std::shared_ptr<buffer_pool> bulk_pool_;
  std::shared_ptr<modelled_wire> wire_;
};

simulated_cluster::simulated_cluster(std::shared_ptr<simulated_model> model, simulation_options options)
    : model_(std::move(model)), options_(std::move(options)) {
  config_.load<virtual_scheduler>();
  config_.add_message_types<caf::id_block::troupe>();
  config_.set("logger.verbosity", caf::atom("quiet"));
  system_ = std::make_unique<caf::actor_system>(config_);
  scheduler().seed(options_.seed);
  network_ = std::make_shared<modelled_network>(
      scheduler().time(), link_table(options_.link.shape(), options_.settings.links), options_.seed);
  api_server_environment api;
  api.config = model_->config;
  api.model_name = "simulated";
  api.requests_max =
      options_.settings.nodes_limit() * options_.settings.shards_per_node * options_.settings.sequences_max;
  api.seed = options_.seed;
  coordinator_environment coordination;
  coordination.settings = options_.settings;
  coordination.config = model_->config;
  coordination.bind = [this](node_id peer, const caf::strong_actor_ptr& handle) {
    return bind(head_label, label_of(peer), handle);
  };
  placing_options placing;
  auto policy = make_live_policy(options_.settings.rebalance);
  TROUPE_CHECK(policy, "a simulation names a policy that there is");
  placing.policy = options_.policy ? options_.policy : *policy;
  placing.run_behind = [this](std::function<void()> job) {
    scheduler().time().after(options_.solve_time, head_label, std::move(job));
  };
  front_ = scheduler().on_node(head_label, [&] { return spawn_front(*system_, api, coordination, placing); });
  for (uint16_t node = 0; node < options_.settings.nodes; ++node) spawn_node(node, labels_++);
}

simulated_cluster::~simulated_cluster() {
  for (auto& [node, held] : processes_) graveyard_.push_back(std::move(held));
  // The devices first: no completion may reach an actor that is gone.
  for (auto& gone : graveyard_) {
    gone.parts->close();
    scheduler().time().revive(gone.label);
    scheduler().time().resume(gone.label);
    caf::anon_send_exit(gone.actor, caf::exit_reason::kill);
  }
  end_front(front_);
  scheduler().time().clear();
  scheduler().clock().cancel_all();
  while (scheduler().try_run_once()) scheduler().clock().cancel_all();
  // Micro-batches that were under way hold buffers of the nodes' pools.
  scheduler().time().clear();
  network_->clear();
  proxies_.clear();
  proxies_to_.clear();
  front_ = {};
  processes_.clear();
  graveyard_.clear();
  system_.reset();
}

int simulated_cluster::label_of(node_id node) const {
  const auto known = processes_.find(node.value);
  return known == processes_.end() ? -1 : known->second.label;
}

caf::strong_actor_ptr simulated_cluster::bind(int from, int to, const caf::strong_actor_ptr& handle) {
  if (!handle || from == to) return handle;
  auto& proxy = proxies_[{from, handle.get()}];
  if (!proxy) {
    caf::actor_config config;
    proxy = caf::make_actor<link_proxy, caf::strong_actor_ptr>(system_->next_actor_id(), system_->node(), system_.get(),
                                                               config, &scheduler().time(), from, to,
                                                               options_.control_latency, handle);
    proxies_to_.emplace_back(to, proxy);
  }
  return proxy;
}

void simulated_cluster::spawn_node(uint16_t node, int label) {
  auto parts = std::make_shared<seams>(*this, label);
  process started{label, {}, parts};
  processes_[node] = started;
  node_environment environment;
  environment.wanted_node = node;
  environment.process_token = static_cast<uint32_t>(label) + 1;
  environment.profiles = 0xff;
  environment.host = "simulated";
  environment.process = static_cast<uint64_t>(label);
  environment.coordinator = bind(label, head_label, caf::actor_cast<caf::strong_actor_ptr>(front_.coordinator));
  environment.seams = parts;
  processes_[node].actor = scheduler().on_node(label, [&] {
    return system_->spawn([](node_actor::stateful_pointer<node_state> self,
                             node_environment given) { return self->state.start(self, std::move(given)); },
                          environment);
  });
}

bool simulated_cluster::start() {
  return run_until([this] { return board().serving; }, std::chrono::seconds(10));
}

const simulated_stream& simulated_cluster::submit(generation_request request) {
  streams_.push_back(std::make_unique<simulated_stream>());
  auto* stream = streams_.back().get();
  const uint64_t ticket = streams_.size();
  tickets_.push_back(ticket);
  auto sink = std::make_shared<const generation_sink>([stream](generation_event event) {
    if (auto* delta = std::get_if<generation_delta>(&event)) {
      stream->tokens.insert(stream->tokens.end(), delta->tokens.begin(), delta->tokens.end());
      stream->logprobs.insert(stream->logprobs.end(), delta->logprobs.begin(), delta->logprobs.end());
    } else if (auto* finished = std::get_if<generation_finished>(&event)) {
      stream->ended = true;
      stream->reason = finished->reason;
    } else if (auto* failed = std::get_if<generation_failed>(&event)) {
      stream->ended = true;
      stream->failure = failed->cause;
    }
  });
  caf::anon_send(front_.api_server,
                 submit_generation{ticket, std::make_shared<const generation_request>(std::move(request)), sink});
  return *stream;
}

void simulated_cluster::cancel(size_t stream) {
  caf::anon_send(front_.api_server, cancel_generation{tickets_[stream]});
}

bool simulated_cluster::run_until(const std::function<bool()>& done, std::chrono::nanoseconds limit) {
  return scheduler().run_until(done, limit);
}

bool simulated_cluster::run_for(std::chrono::nanoseconds duration) {
  const auto end = scheduler().time().now() + duration;
  return run_until([&] { return scheduler().time().now() >= end; }, 2 * duration);
}

bool simulated_cluster::all_ended() const {
  for (const auto& stream : streams_)
    if (!stream->ended) return false;
  return true;
}

void simulated_cluster::crash(uint16_t node) {
  auto& victim = processes_.at(node);
  auto& time = scheduler().time();
  time.kill(victim.label);
  victim.parts->close();
  // Its connections break a moment later.
  for (const auto& [to, proxy] : proxies_to_) {
    if (to != victim.label) continue;
    time.after(options_.crash_detection, head_label, [proxy = proxy] {
      static_cast<caf::actor_proxy*>(caf::actor_cast<caf::abstract_actor*>(proxy))
          ->kill_proxy(nullptr, caf::exit_reason::remote_link_unreachable);
    });
  }
}

void simulated_cluster::pause(uint16_t node) { scheduler().time().pause(processes_.at(node).label); }

void simulated_cluster::resume(uint16_t node) { scheduler().time().resume(processes_.at(node).label); }

void simulated_cluster::join(uint16_t node) {
  if (const auto gone = processes_.find(node); gone != processes_.end()) {
    TROUPE_CHECK(gone->second.parts->released_, "a process joins in the place of one that is there");
    graveyard_.push_back(std::move(gone->second));
  }
  spawn_node(node, labels_++);
}

void simulated_cluster::drain(uint16_t node) {
  caf::anon_send(front_.coordinator, drain_request{node_id{node}, nullptr});
}

bool simulated_cluster::released(uint16_t node) const {
  const auto known = processes_.find(node);
  return known != processes_.end() && known->second.parts->released_;
}

uint64_t simulated_cluster::replicas_at(uint16_t node) const {
  const auto snapshot = board();
  return node < snapshot.nodes.size() ? snapshot.nodes[node].counters.replicas : 0;
}

void simulated_cluster::restart(uint16_t node) {
  auto& old = processes_.at(node);
  scheduler().time().kill(old.label);
  old.parts->close();
  graveyard_.push_back(std::move(old));
  spawn_node(node, labels_++);
}

device_statistics simulated_cluster::device_totals() const {
  device_statistics sum;
  for (const auto& [node, held] : processes_) {
    if (!held.parts->device_) continue;
    const auto one = held.parts->device_->statistics();
    sum.stages += one.stages;
    sum.expert_launches += one.expert_launches;
    sum.weight_passes += one.weight_passes;
    sum.expert_rows += one.expert_rows;
    sum.busy_ns += one.busy_ns;
  }
  return sum;
}

uint64_t simulated_cluster::buffers_in_use() const {
  uint64_t sum = 0;
  for (const auto& [node, held] : processes_)
    for (const auto& pool : {held.parts->dispatch_pool(), held.parts->combine_pool(), held.parts->bulk_pool()})
      if (pool) sum += pool->bytes_in_use();
  return sum;
}

run_times simulated_cluster::times() const {
  run_times sum;
  const auto board = front_.board->read();
  for (const auto& [node, held] : processes_) {
    if (!held.parts->device_) continue;
    const auto total = held.parts->device_->account().total();
    run_times one{total.active_ns(), total.busy_ns(), total.busy_ns(), network_->busiest_link_ns(node), 0};
    if (node < board.nodes.size()) one.chain_ns = board.nodes[node].counters.chain_ns;
    sum = slowest(sum, one);
  }
  return sum;
}

result<void> simulated_cluster::begin_timelines(const std::filesystem::path& file) {
  timeline_file_ = file;
  for (const auto& [node, held] : processes_) {
    auto opened = timeline::open(file.string() + ".node" + std::to_string(node), node, false);
    if (!opened) return opened.failure();
    timelines_.push_back(*std::move(opened));
    held.parts->device_->account().attach(timelines_.back().get());
  }
  return {};
}

result<void> simulated_cluster::end_timelines() {
  std::vector<std::filesystem::path> parts;
  for (const auto& [node, held] : processes_) {
    held.parts->device_->account().attach(nullptr);
    parts.push_back(timeline_file_.string() + ".node" + std::to_string(node));
  }
  timelines_.clear();
  return join_timelines(parts, timeline_file_);
}

}  // namespace troupe
