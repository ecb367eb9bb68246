#include "apps/cluster/live_seams.hpp"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <random>

#include "apps/cluster/leader_between_tasks.hpp"
#include "apps/cluster/load_meter.hpp"
#include "runtime/device/cpu_set.hpp"
#include "runtime/memory/huge_pages.hpp"
#include "runtime/wire/local_wire.hpp"
#include "runtime/wire/socket_address.hpp"

namespace troupe {

namespace {

constexpr uint16_t slots_max = 65;  // the host and up to 64 shards

// A wire that spins answers sooner. Where compute threads take all CPUs it takes the time from what it waits for.
constexpr uint32_t spin_us_on_shared_cpus = 5;

// Of actors, for one completion or message, on the thread that brings it. Where compute threads take all CPUs, handing
// them to the scheduler's thread costs a switch of threads and makes nothing run at the same time.
constexpr int handlers_most = 1024;

// How long a process waits for another one that packs weights for both, before it packs them for itself.
constexpr std::chrono::seconds packing_patience{60};

// Threads that share out independent items and end with the call. Thread i stays on cpus[i], so that the memory a
// weight is packed into is near a CPU that computes.
parallel_runner run_on_threads(uint32_t threads, std::vector<int> cpus) {
  return [threads, cpus = std::move(cpus)](int count, const std::function<void(int)>& item) {
    std::atomic<int> next{0};
    const auto work = [&](uint32_t thread) {
      pin_this_thread(cpus, thread);
      for (int i = next++; i < count; i = next++) item(i);
    };
    std::vector<std::jthread> helpers;
    for (uint32_t i = 1; i < threads; ++i) helpers.emplace_back(work, i);
    work(0);
  };
}

// What a loader thread needs to know.
struct load_order {
  std::string who;  // begins lines about the load
  std::string directory;
  std::shared_ptr<const model_config> config;
  std::vector<std::pair<uint32_t, uint32_t>> experts;
  parallel_runner run;
  bool share = false;  // what shards hold, with other processes
};

std::shared_ptr<loaded_weights> load_all(const load_order& order, const kernels::compute& math) {
  const auto& config = *order.config;
  auto loaded = std::make_shared<loaded_weights>();
  loaded->config = order.config;
  auto files = checkpoint::open(order.directory);
  if (!files) {
    loaded->outcome = files.failure();
    return loaded;
  }
  load_meter meter(order.who, bytes_to_load(*files, order.experts), load_meter::clock::now());
  const bool watched = isatty(STDERR_FILENO) == 1;
  const auto heard = [&meter, watched](uint64_t bytes) {
    const auto line = meter.add(bytes, load_meter::clock::now());
    if (line && watched) std::fprintf(stderr, "%s\n", line->c_str());
  };
  const auto load_shard = [&](std::shared_ptr<shared_weights> shared) -> result<void> {
    auto shard = load_shard_weights(*files, config, math, order.run, heard, shared);
    if (!shard) return shard.failure();
    loaded->shard = *shard;
    if (!shared) return {};
    spdlog::debug("{}: {:.2f} GB of weights {}", order.who, static_cast<double>(shared->bytes()) / 1e9,
                  shared->found() ? "are shared with another process" : "are there for other processes to share");
    if (auto sealed = shared->seal(); !sealed) spdlog::warn("{}: {}", order.who, sealed.failure().message);
    return {};
  };
  // While another process packs what both need, this one begins with its experts.
  const std::string key = order.share ? packing_key(order.directory, math) : "";
  auto shared = shared_weights::open(order.directory, key, std::chrono::milliseconds(0));
  const bool later = order.share && !shared;
  if (!later) loaded->outcome = load_shard(std::move(shared));
  if (!loaded->outcome) return loaded;
  loaded->experts.resize(order.experts.size());
  std::vector<std::optional<error>> failures(order.experts.size());
  order.run(static_cast<int>(order.experts.size()), [&](int i) {
    const auto [layer, expert] = order.experts[static_cast<size_t>(i)];
    auto weights = load_expert_weights(*files, config, math, static_cast<int>(layer), static_cast<int>(expert), heard);
    if (!weights)
      failures[static_cast<size_t>(i)] = weights.failure();
    else
      loaded->experts[static_cast<size_t>(i)] = {layer, expert, *weights};
  });
  for (const auto& failure : failures)
    if (failure) loaded->outcome = *failure;
  if (later && loaded->outcome)
    loaded->outcome = load_shard(shared_weights::open(order.directory, key, packing_patience));
  return loaded;
}

// Weights on small pages are read a third slower; the user can do something about it.
void warn_of_small_pages(const std::string& who, uint64_t weight_bytes) {
  constexpr uint64_t worth_it = uint64_t{256} << 20U;
  const uint64_t huge = bytes_on_huge_pages();
  if (weight_bytes < worth_it || huge >= weight_bytes / 10 * 9) return;
  spdlog::warn(
      "{}: only {:.1f} of {:.1f} GB of weights lie on huge pages, and reading them is slower for it; "
      "/sys/kernel/mm/transparent_hugepage/enabled should say madvise or always, and memory should be free",
      who, static_cast<double>(huge) / 1e9, static_cast<double>(weight_bytes) / 1e9);
}

}  // namespace

live_seams::~live_seams() {
  close();
  if (loader_.joinable()) loader_.join();
}

void live_seams::record_trace(bool recording) {
  const std::lock_guard lock(mutex_);
  recording_ = recording;
  if (!timeline_ || closed_) return;
  device_->account().attach(recording ? timeline_.get() : nullptr);
  spdlog::info("{}: the timeline {}", who_, recording ? "goes on" : "is paused");
}

void live_seams::close() {
  const std::lock_guard closing(closing_);
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  // Without the lock: the device's and the wire's threads, which end their work here, may run an actor that asks these
  // seams for something.
  behind_.reset();  // its jobs hold handles of actors, which end next
  if (saboteur_.joinable()) {
    saboteur_.request_stop();
    saboteur_.join();
  }
  if (device_) {
    device_->stop();
    device_->account().attach(nullptr);
  }
  timeline_.reset();
  if (wire_)
    for (uint16_t slot = 0; slot < slots_max; ++slot) wire_->detach(slot);
  // An actor may be running on the wire's thread still.
  if (ucx_ != nullptr) ucx_->settle();
}

result<std::shared_ptr<const model_config>> live_seams::read_config(const serving_settings& settings) {
  auto config = load_model_config(settings.model);
  if (!config) return config.failure();
  return std::shared_ptr<const model_config>(std::make_shared<model_config>(*std::move(config)));
}

result<void> live_seams::open(node_id node, incarnation_id incarnation, const serving_settings& settings,
                              const model_config& config) {
  const std::lock_guard lock(mutex_);
  if (closed_) return error{errc::cancelled, "the process is ending"};
  who_ = "node " + std::to_string(node.value);
  const auto allowed = allowed_cpus();
  cpus_ = cpus_of_node(allowed, node.value, settings.nodes, settings.threads_per_node);
  if (!allowed.empty() && settings.threads_per_node > allowed.size())
    spdlog::warn("{}: threads_per_node is {}, but this process may use {} CPUs only; fewer threads would be faster",
                 who_, settings.threads_per_node, allowed.size());
  const auto memory = size_node_memory(settings, config);
  dispatch_pool_ = std::make_shared<buffer_pool>(memory.dispatch_bytes);
  combine_pool_ = std::make_shared<buffer_pool>(memory.combine_bytes);
  bulk_pool_ = std::make_shared<buffer_pool>(bulk_pool_bytes);
  const bool all_taken = compute_takes_all(allowed, settings.nodes, settings.threads_per_node);
  const auto listen = parse_address(options_.wire_host + ":0");
  const bool on_one_machine = settings.nodes_limit() > 1 && listen && is_loopback(*listen);
  const bool shared = on_one_machine && all_taken && cpus_.empty();
  const auto leader = std::make_shared<leader_between_tasks>(*system_, handlers_most,
                                                             shared      ? leader_between_tasks::cpus::shared
                                                             : all_taken ? leader_between_tasks::cpus::all_taken
                                                                         : leader_between_tasks::cpus::to_spare);
  device_ =
      std::make_shared<cpu_device>(kernels::compute::make(settings.profile),
                                   static_cast<int>(settings.threads_per_node), settings.schedule.ranks, cpus_, leader);
  if (!options_.trace.empty()) {
    auto opened = timeline::open(options_.trace, node.value, true);
    if (!opened) return opened.failure();
    timeline_ = *std::move(opened);
    if (recording_) device_->account().attach(timeline_.get());
  }
  if (settings.nodes_limit() == 1) {
    wire_ = std::make_shared<local_wire>(std::make_shared<local_switch>(), node.value, incarnation.value);
    return {};
  }
  received_dispatches_ = std::make_shared<buffer_pool>(memory.received_dispatch_bytes);
  received_combines_ = std::make_shared<buffer_pool>(memory.received_combine_bytes);
  received_bulk_ = std::make_shared<buffer_pool>(uint64_t{64} << 20U);
  ucx_wire_options options;
  options.node = node.value;
  options.incarnation = incarnation.value;
  options.listen = options_.wire_host + ":0";
  options.payload_checksum = settings.payload_checksum;
  options.transports = settings.transports;
  if (on_one_machine && all_taken) {
    options.spin_us = spin_us_on_shared_cpus;
    options.spin_large_us = 0;
    options.handlers_most = handlers_most;
    options.patient = shared;
  }
  shaped_wire_options shaped;
  shaped.node = node.value;
  shaped.links = link_table({}, settings.links);
  buffer_pool* pools[] = {received_dispatches_.get(), received_combines_.get(), received_bulk_.get()};
  for (size_t i = 0; i < options.classes.size(); ++i) {
    options.classes[i].receive_pool = pools[i];
    options.classes[i].receive_bytes_max = pools[i]->bytes_max();
    options.classes[i].bytes_in_flight_max =
        std::max<uint64_t>(options.classes[i].bytes_in_flight_max, memory.combine_bytes);
    shaped.bytes_max[i] = options.classes[i].bytes_in_flight_max;
  }
  options.on_peer = [](const peer_event& event) {
    spdlog::debug("wire: node {} incarnation {} is {} {}", event.node, event.incarnation, event.up ? "up" : "down",
                  event.reason);
  };
  auto made = ucx_wire::make(std::move(options));
  if (!made) return made.failure();
  ucx_ = made->get();
  if (shared) leader->take_turns_of(*ucx_);
  if (settings.fault_cut_ms > 0)
    saboteur_ = std::jthread([this, period = settings.fault_cut_ms, node = node.value, nodes = settings.nodes_limit()](
                                 const std::stop_token& stop) { cut_connections(stop, period, node, nodes); });
  wire_ = *std::move(made);
  if (!settings.links.empty()) wire_ = std::make_shared<shaped_wire>(std::move(wire_), std::move(shaped));
  return {};
}

void live_seams::load(const serving_settings& settings, std::shared_ptr<const model_config> config,
                      std::vector<std::pair<uint32_t, uint32_t>> experts,
                      std::function<void(std::shared_ptr<loaded_weights>)> done) {
  const std::lock_guard lock(mutex_);
  model_ = settings.model;
  config_ = config;
  load_order order{who_,
                   settings.model,
                   std::move(config),
                   std::move(experts),
                   run_on_threads(settings.threads_per_node, cpus_),
                   settings.nodes_limit() > 1};
  loader_ =
      std::thread([order = std::move(order), done = std::move(done), device = device_, heard = options_.on_loaded] {
        kernels::prepare_thread();
        const auto begin = load_meter::clock::now();
        auto loaded = load_all(order, device->math());
        uint64_t bytes = 0;
        if (loaded->outcome) {
          bytes = loaded->shard->bytes();
          for (const auto& hosted : loaded->experts) bytes += hosted.weights->bytes();
          spdlog::debug("{}: {:.2f} GB of weights packed in {:.2f} s", order.who, static_cast<double>(bytes) / 1e9,
                        std::chrono::duration<double>(load_meter::clock::now() - begin).count());
        }
        if (loaded->outcome && heard) heard(*loaded);
        done(std::move(loaded));
        warn_of_small_pages(order.who, bytes);
      });
}

void live_seams::load_expert(uint32_t layer, uint32_t expert,
                             std::function<void(result<std::shared_ptr<const expert_weights>>)> done) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  if (!behind_) behind_ = std::make_unique<background_worker>([] { kernels::prepare_thread(); });
  behind_->run([this, layer, expert, done = std::move(done)] {
    if (!files_) {
      auto opened = checkpoint::open(model_);
      if (!opened) return done(opened.failure());
      files_ = std::make_shared<const checkpoint>(*std::move(opened));
    }
    done(load_expert_weights(*files_, *config_, device_->math(), static_cast<int>(layer), static_cast<int>(expert)));
  });
}

// Fault injection; which connection and when is drawn from the node's own number.
void live_seams::cut_connections(const std::stop_token& stop, uint32_t period_ms, uint16_t node, uint32_t nodes) {
  std::mt19937_64 draw(node);
  for (;;) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(1 + draw() % (2 * period_ms));
    while (std::chrono::steady_clock::now() < until) {
      if (stop.stop_requested()) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    const auto victim = static_cast<uint16_t>(draw() % nodes);
    if (victim != node) ucx_->cut(victim);
  }
}

uint64_t live_seams::cpu_ns() const {
  timespec taken{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &taken);
  return static_cast<uint64_t>(taken.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(taken.tv_nsec);
}

std::string live_seams::wire_address() const { return ucx_ != nullptr ? ucx_->listen_address() : "local"; }

void live_seams::connect(const cluster_member& peer) {
  if (ucx_ == nullptr) return;
  const auto started = ucx_->connect(peer.node.value, peer.incarnation.value, peer.wire_address);
  if (!started) spdlog::error("node {} cannot be connected: {}", peer.node.value, started.failure().message);
}

void live_seams::give_up(node_id peer, incarnation_id incarnation) {
  if (ucx_ != nullptr) ucx_->refuse(peer.value, incarnation.value);
}

void live_seams::ended(const error& reason, node_end how) {
  if (options_.on_ended) options_.on_ended(reason, how);
}

}  // namespace troupe
