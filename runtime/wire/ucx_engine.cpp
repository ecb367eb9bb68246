#include "runtime/wire/ucx_engine.hpp"

#include <pthread.h>
#include <sched.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "runtime/patient_thread.hpp"
#include "runtime/wire/wire_time.hpp"

namespace troupe {

ucx_wire::engine::engine(ucx_wire_options options, const socket_address& listen)
    : options_(std::move(options)), listen_(listen), sender_(std::make_unique<ucx_sender>(options_, counters_)) {}

ucx_wire::engine::~engine() {
  if (!thread_.joinable()) return;
  stop_.store(true);
  worker_->wake();
  thread_.join();
}

result<void> ucx_wire::engine::start() {
  std::promise<result<void>> started;
  auto outcome = started.get_future();
  thread_ = std::thread([this, promise = std::move(started)]() mutable { run(std::move(promise)); });
  auto opened = outcome.get();
  if (!opened) thread_.join();
  return opened;
}

void ucx_wire::engine::post(command what) {
  {
    const std::lock_guard lock(commands_mutex_);
    commands_.push_back(std::move(what));
  }
  has_commands_.store(true);
  worker_->wake();
}

void ucx_wire::engine::connect(uint16_t node, uint32_t incarnation, const socket_address& address) {
  // Admitted at once, so that what the caller sends next waits instead of being refused.
  ucx_peer& peer = peers_.find_or_add(node);
  const uint64_t wanted = ucx_peer::admission_of(incarnation);
  uint64_t admitted = peer.admission.load();
  while (admitted < wanted && !peer.admission.compare_exchange_weak(admitted, wanted)) {}
  post({command::verb::connect, node, incarnation, address, nullptr});
}

void ucx_wire::engine::disconnect(uint16_t node) { post({command::verb::disconnect, node, 0, {}, nullptr}); }

void ucx_wire::engine::cut(uint16_t node) { post({command::verb::cut, node, 0, {}, nullptr}); }

void ucx_wire::engine::refuse(uint16_t node, uint32_t incarnation) {
  post({command::verb::refuse, node, incarnation, {}, nullptr});
}

void ucx_wire::engine::settle() {
  if (std::this_thread::get_id() == whose_turn_.load()) return;
  auto settled = std::make_shared<std::promise<void>>();
  auto outcome = settled->get_future();
  post({command::verb::settle, 0, 0, {}, std::move(settled)});
  outcome.wait();
}

result<void> ucx_wire::engine::send(endpoint to, micro_batch&& message) {
  auto& header = message.header;
  ucx_peer* const peer = peers_.find(to.node);
  if (peer == nullptr || !peer->admits(to.incarnation))
    return error{errc::unavailable, "node " + std::to_string(to.node) + " incarnation " +
                                        std::to_string(to.incarnation) + " is not connected"};
  const size_t class_index = message_class(header.kind);
  const auto& limits = options_.classes[class_index];
  const uint64_t charge = header.payload_bytes + sizeof header;
  if (!peer->credits[class_index].reserve(charge, {limits.bytes_in_flight_max, limits.messages_in_flight_max}))
    return error{errc::exhausted, "as much is in flight to the node as its limits allow"};
  if (header.send_time_ns == 0) header.send_time_ns = wire_time_ns();
  if (options_.payload_checksum) seal(message, true);

  send_request* const request = sender_->requests().take();
  request->message = std::move(message);
  request->peer = peer;
  request->charged = charge;
  sender_->submit(request);
  worker_->wake();
  return {};
}

result<void> ucx_wire::engine::deliver_here(endpoint to, micro_batch&& message) {
  auto& header = message.header;
  if (to.incarnation != options_.incarnation)
    return error{errc::unavailable, "this node's incarnation is not " + std::to_string(to.incarnation)};
  header.sequence = own_sequences_[message_class(header.kind)].fetch_add(1, std::memory_order_relaxed);
  message.delivered_ns = wire_time_ns();
  if (header.send_time_ns == 0) header.send_time_ns = message.delivered_ns;
  seal(message, false);
  const uint64_t bytes = header.payload_bytes;
  counters_.messages_here.add();
  counters_.bytes_here.add(bytes);
  if (!slots_.deliver(std::move(message))) counters_.unaddressed_here.add();
  return {};
}

void ucx_wire::engine::run(std::promise<result<void>> started) {
  pthread_setname_np(pthread_self(), "troupe-wire");
  if (options_.patient) be_patient();
  auto opened = open();
  const bool ready = static_cast<bool>(opened);
  if (!ready) {
    links_.reset();
    worker_.reset();
  }
  started.set_value(std::move(opened));
  if (!ready) return;
  loop();
  close();
}

result<void> ucx_wire::engine::open() {
  auto made = ucx_worker::make(options_.transports, is_loopback(listen_));
  if (!made) return made.failure();
  worker_ = std::move(*made);
  receiver_ = std::make_unique<ucx_receiver>(options_, counters_, peers_, slots_);
  links_ = std::make_unique<ucx_links>(options_, counters_, peers_, *worker_, *sender_, *receiver_);
  if (auto started = start_links(listen_); !started) return started;
  listen_address_ = worker_->listen_address();
  return {};
}

result<void> ucx_wire::engine::start_links(const socket_address& listen) {
  receiver_->start(worker_->handle());
  auto registered = worker_->on_message(message_id_data, &ucx_receiver::on_data, receiver_.get());
  if (!registered) return registered;
  if (auto listening = links_->open(listen); !listening) return listening;
  close_descriptors_on_exec();
  return {};
}

void ucx_wire::engine::loop() {
  // While messages flow the clock is read now and then only.
  constexpr uint32_t active_rounds_between_readings = 64;
  uint64_t now_ns = wire_time_ns();
  uint64_t active_ns = now_ns;
  uint32_t active_rounds = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    uint64_t spin_until_ns = 0;
    {
      const std::lock_guard turn(turn_);
      whose_turn_ = std::this_thread::get_id();
      const bool any = step(now_ns);
      whose_turn_ = std::thread::id();
      if (any) {
        if (++active_rounds % active_rounds_between_readings == 0) now_ns = wire_time_ns();
        active_ns = now_ns;
        continue;
      }
      // A transfer of 1 MiB takes longer than one spin, and waking up as long as a good part of it.
      const uint64_t spins = unfinished() == 0 ? 1 : 4;
      spin_until_ns = std::max(active_ns + spins * options_.spin_us * 1000, sender_->answer_until_ns());
    }
    now_ns = wire_time_ns();
    if (now_ns < spin_until_ns) {
      // Yielding: the peer that would answer may be waiting for this very core.
      sched_yield();
    } else {
      sleep();
      now_ns = active_ns = wire_time_ns();
    }
  }
}

bool ucx_wire::engine::step(uint64_t now_ns) {
  const bool progressed = worker_->progress();
  bool any = progressed;
  send_request* const submitted = sender_->take_submitted();
  if (has_commands_.load(std::memory_order_acquire)) any = obey_commands() || any;
  if (submitted != nullptr) {
    sender_->route_all(submitted);
    any = true;
  }
  any = links_->run(now_ns) || any;
  if (links_->take_lost() && !stop_.load(std::memory_order_relaxed)) check_hearing();
  if (sender_->has_bulk()) any = sender_->start_bulk() || any;
  if (receiver_->has_held()) any = receiver_->retry_held() || any;
  if (sender_->has_quarantined()) sender_->end_quarantine(now_ns, false);
  if (receiver_->has_ready()) any = fetch_bulk(progressed) || any;
  receiver_->refresh_slots();
  return any;
}

// The next fragment of bulk, when dispatch and combine leave it a gap or have done so for too long.
bool ucx_wire::engine::fetch_bulk(bool progressed) {
  const uint64_t now_ns = wire_time_ns();
  const uint64_t urgent = receiver_->urgent_received() + sender_->urgent_started();
  if (urgent != urgent_seen_) {
    urgent_seen_ = urgent;
    urgent_ns_ = now_ns;
  }
  const bool gap = !progressed && now_ns - urgent_ns_ >= options_.bulk_gap_us * 1000;
  if (!gap && now_ns - fetched_ns_ < options_.bulk_wait_max_us * 1000) return false;
  if (!receiver_->fetch_next()) return false;
  fetched_ns_ = wire_time_ns();
  return true;
}

bool ucx_wire::engine::obey_commands() {
  std::vector<command> taken;
  {
    const std::lock_guard lock(commands_mutex_);
    has_commands_.store(false);
    taken.swap(commands_);
  }
  for (const auto& one : taken) {
    switch (one.what) {
      case command::verb::connect: links_->connect(one.node, one.incarnation, one.address); break;
      case command::verb::disconnect: links_->disconnect(one.node, "this node disconnected it"); break;
      case command::verb::cut: links_->cut(one.node); break;
      case command::verb::refuse: links_->refuse(one.node, one.incarnation); break;
      // Commands are obeyed between deliveries.
      case command::verb::settle: one.settled->set_value(); break;
    }
  }
  return !taken.empty();
}

uint64_t ucx_wire::engine::bytes_in_flight() const {
  uint64_t charged = 0;
  peers_.for_each([&](const ucx_peer& peer) {
    for (const auto& account : peer.credits) {
      const auto reserved = account.reserved();
      charged += reserved.bytes - reserved.messages * sizeof(micro_batch_header);
    }
  });
  return charged;
}

uint64_t ucx_wire::engine::unfinished() const {
  return sender_->unfinished() + receiver_->unfinished() + links_->greetings_unfinished();
}

// Progresses until UCX holds no request and no bulk is queued, and with `everything` no connection either. False when
// time is up.
bool ucx_wire::engine::finish(uint32_t timeout_ms, bool everything) {
  const uint64_t deadline_ns = wire_time_ns() + uint64_t{timeout_ms} * 1'000'000;
  for (;;) {
    const uint64_t now_ns = wire_time_ns();
    if (!step(now_ns)) sched_yield();
    if (unfinished() == 0 && !sender_->has_bulk() && (!everything || links_->all_closed())) return true;
    if (now_ns > deadline_ns) return false;
  }
}

// A peer that was killed may have blocked what others send here (see `ucx_worker::hears`). Only new UCX objects help.
void ucx_wire::engine::check_hearing() {
  if (worker_->hears()) return;
  counters_.receive_queues_blocked.add();
  spdlog::warn(
      "node {}: a process that ended in the middle of a message has blocked the queue in shared memory by which this "
      "node receives; all connections are made anew",
      options_.node);
  links_->let_go("the queue by which this node receives was blocked");
  const uint64_t deadline_ns = wire_time_ns() + uint64_t{options_.close_timeout_ms} * 1'000'000;
  while (unfinished() != 0 || !links_->all_closed()) {
    const uint64_t now_ns = wire_time_ns();
    if (now_ns > deadline_ns) {
      spdlog::error("node {}: UCX does not end {} requests, so the wire stays cut off; restart this node",
                    options_.node, unfinished());
      return;
    }
    const bool progressed = worker_->progress();
    if (!links_->run(now_ns) && !progressed) sched_yield();
  }
  auto opened = worker_->reopen();
  if (opened) opened = start_links(*parse_address(listen_address_));
  if (opened) return;
  spdlog::critical("node {}: its wire could not be opened anew: {}", options_.node, opened.failure().message);
  std::abort();
}

void ucx_wire::engine::close() {
  const std::lock_guard turn(turn_);
  step(wire_time_ns());
  finish(options_.drain_timeout_ms, false);
  links_->say_bye();
  finish(options_.drain_timeout_ms, false);
  links_->close_all();
  const bool clean = finish(options_.close_timeout_ms, true);
  sender_->end_quarantine(0, true);
  if (clean) {
    links_.reset();
    receiver_.reset();
    return;  // the worker goes with the engine, after the last `wake`
  }
  // Destroying a worker with unfinished requests aborts the process; what they refer to must stay.
  spdlog::error("the wire of node {} closed with {} requests that UCX did not end; their memory stays in use",
                options_.node, unfinished());
  (void)links_.release();
  (void)receiver_.release();
  (void)sender_.release();
  (void)worker_.release();
}

}  // namespace troupe
