// The part of `expert_host` that lets replicas come and go while it serves.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "actors/expert_host.hpp"

namespace troupe {

namespace {

// A piece that does not come for so long is asked for again; after so many times the checkpoint is read.
constexpr auto piece_deadline = std::chrono::milliseconds(500);
constexpr uint32_t tries_max = 4;
constexpr size_t arriving_max = 64;

std::string place_name(uint32_t layer, uint32_t expert) {
  return "layer " + std::to_string(layer) + ", expert " + std::to_string(expert);
}

}  // namespace

void expert_host_state::host(uint32_t layer, uint32_t expert_number, std::shared_ptr<const expert_weights> weights) {
  const size_t place = at(layer, expert_number);
  ++replicas_;
  replica_bytes_ += weights->bytes();
  weights_[place] = weights;
  experts_[place] = self_->spawn<caf::linked>(
      expert, expert_environment{layer, expert_number, std::move(weights), environment_.compute});
  hosted_[place] = true;
  rows_by_source_[place].resize(sources_);  // what an earlier replica received here stays
}

void expert_host_state::report(uint32_t layer, uint32_t expert_number, replica_outcome outcome, uint64_t bytes,
                               std::string message) {
  caf::anon_send(environment_.owner, replica_report{environment_.node, environment_.incarnation, layer, expert_number,
                                                    static_cast<uint8_t>(outcome), bytes, std::move(message)});
}

// What so many bytes take of the budget.
std::chrono::nanoseconds expert_host_state::budget_time(uint64_t bytes) const {
  const double bytes_per_s = environment_.settings.rebalance.bandwidth_mb_s * 1e6;
  return std::chrono::nanoseconds(static_cast<int64_t>(static_cast<double>(bytes) / bytes_per_s * 1e9));
}

expert_host_state::arriving_replica* expert_host_state::find_arriving(uint32_t number) {
  const auto found =
      std::find_if(arriving_.begin(), arriving_.end(), [&](const auto& one) { return one.number == number; });
  return found == arriving_.end() ? nullptr : &*found;
}

void expert_host_state::on_load(const load_replica& message) {
  keep_reminded();
  const auto& config = *environment_.config;
  if (message.layer >= static_cast<uint32_t>(config.num_hidden_layers) ||
      message.expert >= static_cast<uint32_t>(config.n_routed_experts) ||
      !config.is_moe(static_cast<int>(message.layer)))
    return report(message.layer, message.expert, replica_outcome::failed, 0,
                  place_name(message.layer, message.expert) + " does not exist in this model");
  const size_t place = at(message.layer, message.expert);
  if (hosted_[place]) return report(message.layer, message.expert, replica_outcome::ready, weights_[place]->bytes());
  const auto same = [&](const auto& one) { return one.layer == message.layer && one.expert == message.expert; };
  if (std::any_of(arriving_.begin(), arriving_.end(), same)) return;
  if (arriving_.size() >= arriving_max || std::any_of(leaving_.begin(), leaving_.end(), same))
    return report(message.layer, message.expert, replica_outcome::failed, 0,
                  place_name(message.layer, message.expert) + " cannot be loaded while " +
                      (arriving_.size() >= arriving_max ? "so many others are" : "it is being freed"));
  auto& arriving = arriving_.emplace_back();
  arriving.number = ++arrivals_;
  arriving.layer = message.layer;
  arriving.expert = message.expert;
  arriving.began = self_->clock().now();
  if (!message.from_peer) return read_checkpoint(arriving);
  arriving.source = endpoint{message.source.value, slot, message.source_incarnation.value};
  arriving.arrival = std::make_unique<expert_arrival>(config, environment_.compute->math(), message.layer,
                                                      message.expert, arriving.number);
  ask(arriving);
}

void expert_host_state::ask(arriving_replica& arriving) {
  arriving.asked = self_->clock().now();
  ++arriving.tries;
  auto request = arriving.arrival->request();
  request.header.source_node = environment_.node.value;
  request.header.source_slot = slot;
  request.header.source_incarnation = environment_.incarnation.value;
  // Silence, if it cannot be sent: asked again by the deadline.
  static_cast<void>(environment_.data_plane->send(*arriving.source, std::move(request)));
}

void expert_host_state::read_checkpoint(arriving_replica& arriving) {
  arriving.source.reset();
  arriving.arrival.reset();
  environment_.load_expert(
      arriving.layer, arriving.expert, [address = address_, number = arriving.number](auto weights) {
        caf::anon_send(address, replica_loaded{number, std::make_shared<decltype(weights)>(std::move(weights))});
      });
}

void expert_host_state::on_loaded(const replica_loaded& message) {
  auto* arriving = find_arriving(message.number);
  if (arriving == nullptr) return;  // given up meanwhile
  if (*message.weights)
    finish(*arriving, **message.weights);
  else
    fail(*arriving, message.weights->failure().message);
}

void expert_host_state::on_bulk(const micro_batch& message) {
  const auto& header = message.header;
  if (header.bulk_kind == static_cast<uint32_t>(bulk_kind::expert_piece)) return on_piece(message);
  if (header.bulk_kind != static_cast<uint32_t>(bulk_kind::expert_request)) return;
  const auto& config = *environment_.config;
  const bool exists = header.layer < static_cast<uint32_t>(config.num_hidden_layers) &&
                      header.row_count < static_cast<uint32_t>(config.n_routed_experts);
  const auto* weights = exists ? weights_[at(header.layer, header.row_count)].get() : nullptr;
  auto answer = answer_request(header, weights, environment_.compute->math(), *environment_.bulk_pool);
  if (!answer) return;  // no memory now: it is asked again
  answer->header.source_node = environment_.node.value;
  answer->header.source_slot = slot;
  answer->header.source_incarnation = environment_.incarnation.value;
  static_cast<void>(environment_.data_plane->send(
      endpoint{header.source_node, header.source_slot, header.source_incarnation}, *std::move(answer)));
}

void expert_host_state::on_piece(const micro_batch& message) {
  auto* arriving = find_arriving(message.header.dispatch_id);
  if (arriving == nullptr || !arriving->arrival || !arriving->source ||
      arriving->source->node != message.header.source_node ||
      arriving->source->incarnation != message.header.source_incarnation)
    return;
  const auto taken = arriving->arrival->take(message);
  if (!taken) {
    spdlog::info("node {}: {}; {} is read from the checkpoint", environment_.node.value, taken.failure().message,
                 place_name(arriving->layer, arriving->expert));
    return read_checkpoint(*arriving);
  }
  if (!*taken) return;
  arriving->tries = 0;
  if (arriving->arrival->complete()) return finish(*arriving, arriving->arrival->finish());
  // Not before the budget allows it.
  const auto due = arriving->began + budget_time(arriving->arrival->bytes_received());
  arriving->asked = std::max(due, self_->clock().now());
  self_->delayed_send(self_, std::max(due - self_->clock().now(), std::chrono::nanoseconds(0)),
                      fetch_on{arriving->number});
}

void expert_host_state::on_fetch(const fetch_on& message) {
  auto* arriving = find_arriving(message.number);
  if (arriving == nullptr) return;
  if (arriving->weights) {
    const auto [layer, expert_number, weights] = std::tuple(arriving->layer, arriving->expert, arriving->weights);
    std::erase_if(arriving_, [&](const auto& one) { return one.number == message.number; });
    host(layer, expert_number, weights);
    report(layer, expert_number, replica_outcome::ready, weights->bytes());
  } else if (arriving->arrival) {
    ask(*arriving);
  }
}

// All of it is here. It counts as ready when the budget has been kept.
void expert_host_state::finish(arriving_replica& arriving, std::shared_ptr<const expert_weights> weights) {
  const auto due = arriving.began + budget_time(weights->bytes());
  arriving.weights = std::move(weights);
  arriving.arrival.reset();
  self_->delayed_send(self_, std::max(due - self_->clock().now(), std::chrono::nanoseconds(0)),
                      fetch_on{arriving.number});
}

void expert_host_state::fail(const arriving_replica& arriving, const std::string& why) {
  report(arriving.layer, arriving.expert, replica_outcome::failed, 0,
         place_name(arriving.layer, arriving.expert) + " cannot be loaded: " + why);
  const uint32_t number = arriving.number;
  std::erase_if(arriving_, [&](const auto& one) { return one.number == number; });
}

void expert_host_state::look_after_arrivals() {
  const auto now = self_->clock().now();
  for (auto& arriving : arriving_) {
    if (!arriving.arrival || now - arriving.asked < piece_deadline) continue;
    if (arriving.tries < tries_max) {
      ask(arriving);
      continue;
    }
    spdlog::info("node {}: node {} sends no weights; {} is read from the checkpoint", environment_.node.value,
                 arriving.source->node, place_name(arriving.layer, arriving.expert));
    read_checkpoint(arriving);
  }
}

void expert_host_state::on_drop(const drop_replica& message) {
  keep_reminded();
  const auto same = [&](const auto& one) { return one.layer == message.layer && one.expert == message.expert; };
  std::erase_if(arriving_, same);
  const auto& config = *environment_.config;
  const bool exists = message.layer < static_cast<uint32_t>(config.num_hidden_layers) &&
                      message.expert < static_cast<uint32_t>(config.n_routed_experts);
  if (std::any_of(leaving_.begin(), leaving_.end(), same)) return;
  if (!exists || !hosted_[at(message.layer, message.expert)])
    return report(message.layer, message.expert, replica_outcome::dropped, 0);
  hosted_[at(message.layer, message.expert)] = false;
  auto& leaving = leaving_.emplace_back(leaving_replica{message.layer, message.expert, {}});
  for (const auto& work : running_)
    if (work->request.header.layer == message.layer) leaving.running.push_back(work.get());
  if (leaving.running.empty()) {
    leaving_.pop_back();
    free_replica(message.layer, message.expert);
  }
}

// A dispatch has ended: what only it still held goes.
void expert_host_state::let_go(const dispatch_work& ended) {
  for (size_t i = 0; i < leaving_.size();) {
    auto& leaving = leaving_[i];
    std::erase(leaving.running, &ended);
    if (!leaving.running.empty()) {
      ++i;
      continue;
    }
    const auto [layer, expert_number] = std::pair(leaving.layer, leaving.expert);
    leaving_.erase(leaving_.begin() + static_cast<std::ptrdiff_t>(i));
    free_replica(layer, expert_number);
  }
}

void expert_host_state::free_replica(uint32_t layer, uint32_t expert_number) {
  const size_t place = at(layer, expert_number);
  const uint64_t bytes = weights_[place]->bytes();
  --replicas_;
  replica_bytes_ -= bytes;
  self_->unlink_from(experts_[place].address());
  caf::anon_send_exit(experts_[place], caf::exit_reason::user_shutdown);
  experts_[place] = expert_actor{};
  weights_[place] = nullptr;
  report(layer, expert_number, replica_outcome::dropped, bytes);
}

}  // namespace troupe
