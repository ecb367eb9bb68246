#include "apps/cluster/head.hpp"

#include <caf/io/all.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <random>

#include "apps/cluster/cluster_documents.hpp"
#include "apps/cluster/step_table.hpp"
#include "runtime/placement/load_files.hpp"

namespace troupe {

namespace {

uint64_t modified_s(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 ? static_cast<uint64_t>(status.st_mtime) : 0;
}

uint64_t draw_seed() {
  std::random_device entropy;  // once, at the edge: everything inside draws from seeded generators
  return (uint64_t{entropy()} << 32U) | entropy();
}

template <class Actor, class State, class Environment>
Actor spawn_stateful(caf::actor_system& system, Environment environment) {
  return system.spawn([](typename Actor::template stateful_pointer<State> self,
                         Environment given) { return self->state.start(self, std::move(given)); },
                      std::move(environment));
}

}  // namespace

std::unique_ptr<caf::actor_system_config> make_system_config(bool network) {
  auto config = std::make_unique<caf::actor_system_config>();
  config->add_message_types<caf::id_block::troupe>();
  // `sharing` parks its workers well; one worker suffices, since actors only pass work on (docs/caf.md).
  config->set("scheduler.policy", caf::atom("sharing"));
  config->set("scheduler.max-threads", size_t{1});
  config->set("logger.verbosity", caf::atom("quiet"));
  if (network) config->load<caf::io::middleman>();
  return config;
}

node_environment describe_process(int32_t wanted_node) {
  node_environment environment;
  environment.wanted_node = wanted_node;
  environment.process_token = static_cast<uint32_t>(draw_seed()) | 1U;
  environment.profiles = 1U << static_cast<unsigned>(kernels::profile::f32);
  if (kernels::cpu_features::detect().amx_bf16())
    environment.profiles |= static_cast<uint8_t>(1U << static_cast<unsigned>(kernels::profile::amx_bf16));
  char name[256] = "unknown";
  gethostname(name, sizeof name - 1);
  environment.host = name;
  environment.process = static_cast<uint64_t>(getpid());
  return environment;
}

result<std::unique_ptr<head>> head::start(head_config config, head_callbacks callbacks) {
  auto model = load_model_config(config.settings.model);
  if (!model) return model.failure();
  auto words = tokenizer::load(config.settings.model);
  if (!words) return words.failure();
  std::unique_ptr<head> started(new head);
  started->config_ = std::move(config);
  const auto& settings = started->config_.settings;
  started->model_ = std::make_shared<model_config>(*std::move(model));
  started->created_s_ = modified_s(settings.model + "/config.json");
  const bool network = settings.nodes_limit() > 1;
  started->system_config_ = make_system_config(network);
  started->system_ = std::make_unique<caf::actor_system>(*started->system_config_);

  api_server_environment api;
  api.config = started->model_;
  api.words = std::make_shared<tokenizer>(*std::move(words));
  api.model_name = started->config_.model_name;
  api.chat = started->config_.chat;
  api.default_max_tokens = started->config_.default_max_tokens;
  api.requests_max = started->config_.requests_max;
  api.seed = draw_seed();
  const uint32_t cached = settings.kv_blocks * kernels::kv_layout::tokens;
  api.positions_max = std::min(static_cast<uint32_t>(started->model_->max_position_embeddings), cached);
  coordinator_environment coordination;
  coordination.settings = settings;
  coordination.config = started->model_;
  coordination.choose_profile = started->config_.choose_profile;
  coordination.default_dispatch = started->config_.default_dispatch;
  coordination.default_combine = started->config_.default_combine;
  coordination.bind = [](node_id, const caf::strong_actor_ptr& handle) { return handle; };
  coordination.on_dead = callbacks.on_dead;
  coordination.on_released = callbacks.on_released;
  auto policy = make_live_policy(settings.rebalance);
  if (!policy) return policy.failure();
  started->behind_ = std::make_unique<background_worker>();
  placing_options placing{*std::move(policy), [behind = started->behind_.get()](std::function<void()> job) {
                            behind->run(std::move(job));
                          }};
  started->front_ = spawn_front(*started->system_, std::move(api), std::move(coordination), std::move(placing));
  if (network) {
    const auto published = started->system_->middleman().publish(
        started->front_.coordinator, started->config_.join_port, started->config_.listen.c_str(), true);
    if (!published)
      return error{errc::unavailable, "nodes cannot join at " + started->config_.listen + ":" +
                                          std::to_string(started->config_.join_port) + ": " +
                                          started->system_->render(published.error())};
    started->join_port_ = *published;
  }

  started->callbacks_ = std::move(callbacks);
  started->spawn_node();
  return started;
}

void head::spawn_node() {
  live_seams_options seams;
  seams.wire_host = config_.listen;
  seams.on_ended = callbacks_.on_ended;
  seams.on_loaded = callbacks_.on_loaded;
  seams.trace = config_.trace;
  seams_.push_back(std::make_shared<live_seams>(std::move(seams)));
  seams_.back()->serve(*system_);
  node_environment environment = describe_process(0);
  environment.coordinator = caf::actor_cast<caf::strong_actor_ptr>(front_.coordinator);
  environment.seams = seams_.back();
  node_ = spawn_stateful<node_actor, node_state>(*system_, std::move(environment));
}

void head::end_node() {
  if (seams_.empty()) return;
  seams_.back()->close();
  caf::anon_send_exit(node_, caf::exit_reason::kill);
  node_ = node_actor{};
}

void head::restart_node() {
  end_node();
  spawn_node();
}

head::~head() {
  if (system_ == nullptr) return;
  if (front_.coordinator) end_front(front_);  // first, so that the coordinator does not mourn the node
  end_node();
  behind_.reset();          // a policy that is asked now is waited for: its answer holds a handle
  front_ = front_actors{};  // the board's readers are gone by now
  system_.reset();          // waits for the actors
  seams_.clear();           // buffers of their pools are gone with the actors
}

uint64_t head::submit(generation_request request, generation_sink sink) {
  const uint64_t ticket = ++tickets_;
  caf::anon_send(front_.api_server,
                 submit_generation{ticket, std::make_shared<const generation_request>(std::move(request)),
                                   std::make_shared<const generation_sink>(std::move(sink))});
  return ticket;
}

void head::cancel(uint64_t request) { caf::anon_send(front_.api_server, cancel_generation{request}); }

bool head::healthy() const {
  const auto board = front_.board->read();
  if (!board.serving) return false;
  for (const auto& node : board.nodes)
    if (node.state == "live") return true;
  return false;
}

std::string head::cluster_json() const { return render_cluster(front_.board->read(), config_.model_name); }

std::string head::steps_text() const { return render_steps(front_.board->read()); }

std::string head::load_csv() const {
  const auto load = front_.board->read().load;
  return to_csv(load ? load->history() : load_history{});
}

std::string head::metrics_text() const { return render_metrics(front_.board->read()); }

}  // namespace troupe
