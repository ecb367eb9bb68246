#include "actors/expert_host.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "actors/actor_runner.hpp"

namespace troupe {

namespace {

constexpr auto tick_period = std::chrono::milliseconds(50);
constexpr uint64_t ticks_per_load = 2;  // how often the rows of each expert are told

}  // namespace

expert_host_actor::behavior_type expert_host_state::start(expert_host_actor::stateful_pointer<expert_host_state> self,
                                                          expert_host_environment environment) {
  self_ = self;
  address_ = caf::actor_cast<caf::actor>(self);
  environment_ = std::move(environment);
  const auto& config = *environment_.config;
  const auto experts = static_cast<size_t>(config.n_routed_experts);
  experts_.resize(static_cast<size_t>(config.num_hidden_layers) * experts);
  hosted_.resize(experts_.size(), false);
  counts_.resize(experts);
  weights_.resize(experts_.size());
  sources_ = std::max(1U, environment_.settings.sources());
  rows_by_source_.resize(experts_.size());
  for (auto& hosted : environment_.experts) host(hosted.layer, hosted.expert, std::move(hosted.weights));
  environment_.experts.clear();
  // The answer to a raw pointer in flight is a handle that keeps this actor alive.
  const uint16_t node = environment_.node.value;
  environment_.data_plane->attach(slot, deliver_to(address_, node, *environment_.data_plane,
                                                   [node, compute = environment_.compute](const micro_batch& message) {
                                                     compute->account().delivered(message, node);
                                                   }));
  keep_reminded();
  return {
      [this](const micro_batch& message) { on_dispatch(message); },
      [this](const dispatch_done& done) { on_done(*done.work); },
      [this](const view_ptr& view) {
        epoch_ = view->epoch;
        oldest_epoch_ = view->oldest_epoch;
      },
      [this](const load_replica& message) { on_load(message); },
      [this](const drop_replica& message) { on_drop(message); },
      [this](const fetch_on& message) { on_fetch(message); },
      [this](const replica_loaded& message) { on_loaded(message); },
      [this](const tick&) { on_tick(); },
  };
}

void expert_host_state::keep_reminded() {
  if (reminders_.begin()) self_->delayed_send(self_, tick_period, tick{});
}

void expert_host_state::on_tick() {
  const bool busy =
      !unsent_.empty() || !waiting_.empty() || !running_.empty() || !arriving_.empty() || !leaving_.empty();
  if (reminders_.again(busy, ticks_per_load)) self_->delayed_send(self_, tick_period, tick{});
  send_unsent();
  serve_waiting();
  look_after_arrivals();
  host_report report;
  report.counters.rows_received = rows_received_;
  report.counters.replicas = replicas_;
  report.counters.replica_bytes = replica_bytes_;
  report.counters.dispatches_refused = refused_;
  if (++ticks_ % ticks_per_load == 0) report.received = received();
  caf::anon_send(environment_.owner, report);
}

void expert_host_state::completed(dispatch_work& work) { post(address_, dispatch_done{&work}); }

void expert_host_state::on_dispatch(const micro_batch& message) {
  if (message.header.kind == message_kind::bulk) return on_bulk(message);
  if (message.header.kind != message_kind::dispatch) return;
  keep_reminded();
  if (!source_of(message.header)) return;  // from where no shard is: nobody waits for an answer
  rows_received_ += message.header.row_count;
  if (const auto status = check(message); status != combine_status::ok) {
    refuse(message, status);
    return;
  }
  if (!waiting_.empty() || !begin(message)) waiting_.push_back(message);
}

// Which shard sent this, as `serving_settings::sources` numbers them; nothing where there is no such shard.
std::optional<uint32_t> expert_host_state::source_of(const micro_batch_header& header) const {
  const auto& settings = environment_.settings;
  const uint32_t shard = header.source_slot - 1U;
  if (header.source_node >= settings.nodes_limit() || shard >= settings.shards_per_node) return std::nullopt;
  return sources_ > 1 ? header.source_node * settings.shards_per_node + shard : 0;
}

std::shared_ptr<const received_rows> expert_host_state::received() const {
  auto told = std::make_shared<received_rows>();
  for (size_t place = 0; place < rows_by_source_.size(); ++place) {
    const auto& rows = rows_by_source_[place];
    if (rows.empty()) continue;
    told->experts.push_back(static_cast<uint32_t>(place));
    told->rows.insert(told->rows.end(), rows.begin(), rows.end());
  }
  return told;
}

combine_status expert_host_state::check(const micro_batch& message) const {
  const auto& header = message.header;
  const auto& config = *environment_.config;
  if (epoch_id{header.epoch} < oldest_epoch_) return combine_status::stale_epoch;
  if (header.hidden != static_cast<uint32_t>(config.hidden_size) || header.dtype != environment_.settings.dispatch ||
      header.layer >= static_cast<uint32_t>(config.num_hidden_layers))
    return combine_status::unknown_expert;
  const size_t base = size_t{header.layer} * static_cast<size_t>(config.n_routed_experts);
  for (const auto& pair : pairs(message))
    if (pair.expert >= config.n_routed_experts || !hosted_[base + pair.expert]) return combine_status::unknown_expert;
  return combine_status::ok;
}

// Hands a dispatch's rows to its experts. Returns false when there is no room for the answer yet.
bool expert_host_state::begin(const micro_batch& message) {
  const auto& header = message.header;
  const auto entries = pairs(message);
  if (entries.empty()) {
    refuse(message, combine_status::ok);
    return true;
  }
  const uint64_t bytes =
      payload_bytes(environment_.settings.combine, header.hidden, header.pair_count, header.pair_count);
  buffer_ref payload = environment_.combine_pool->acquire(bytes);
  if (!payload) return false;
  auto work = take_work();
  work->request = message;
  work->answer.header = answer_header(message);
  work->answer.header.payload_bytes = bytes;
  work->answer.payload = std::move(payload);
  std::memcpy(work->answer.payload->data, entries.data(), entries.size_bytes());

  // A counting sort groups the pairs by expert.
  std::fill(counts_.begin(), counts_.end(), 0U);
  for (const auto& pair : entries) ++counts_[pair.expert];
  uint32_t distinct = 0;
  uint32_t position = 0;
  for (auto& count : counts_) {
    distinct += count > 0 ? 1 : 0;
    const uint32_t begin = position;
    position += count;
    count = begin;
  }
  work->order.resize(entries.size());
  for (uint32_t i = 0; i < entries.size(); ++i) work->order[counts_[entries[i].expert]++] = i;
  work->experts = work->experts_left = distinct;
  work->experts_queued = 0;

  dispatch_work* shared = work.get();
  running_.push_back(std::move(work));
  const size_t base = size_t{header.layer} * static_cast<size_t>(environment_.config->n_routed_experts);
  // counts_[e] is now the end of expert e's pairs and the beginning of the next one's.
  uint32_t begin = 0;
  const uint32_t source = *source_of(header);
  for (size_t e = 0; e < counts_.size(); ++e) {
    if (counts_[e] == begin) continue;
    post(experts_[base + e], expert_rows{shared, begin, counts_[e]});
    rows_by_source_[base + e][source] += counts_[e] - begin;
    begin = counts_[e];
  }
  return true;
}

void expert_host_state::on_done(dispatch_work& work) {
  const auto at = std::find_if(running_.begin(), running_.end(), [&](const auto& held) { return held.get() == &work; });
  TROUPE_CHECK(at != running_.end(), "the device completed a dispatch that is not running");
  if (work.bad_output) {
    refuse(work.request, combine_status::bad_output);
  } else {
    work.answer.header.detail = work.compute_ns;
    send(work.request.header, std::move(work.answer));
  }
  let_go(work);
  work.request = {};
  work.answer = {};
  spare_.push_back(std::move(*at));
  *at = std::move(running_.back());
  running_.pop_back();
  serve_waiting();
}

void expert_host_state::serve_waiting() {
  while (!waiting_.empty() && begin(waiting_.front())) waiting_.pop_front();
}

micro_batch_header expert_host_state::answer_header(const micro_batch& message) const {
  micro_batch_header header = message.header;
  header.kind = message_kind::combine;
  header.dtype = environment_.settings.combine;
  header.status = combine_status::ok;
  header.flags = 0;
  header.payload_checksum = 0;
  header.send_time_ns = 0;  // of the dispatch; the wire stamps the answer's own
  header.source_node = environment_.node.value;
  header.source_slot = slot;
  header.source_incarnation = environment_.incarnation.value;
  header.epoch = epoch_.value;
  return header;
}

void expert_host_state::refuse(const micro_batch& message, combine_status status) {
  refused_ += status == combine_status::stale_epoch || status == combine_status::unknown_expert ? 1 : 0;
  micro_batch answer;
  answer.header = answer_header(message);
  answer.header.status = status;
  answer.header.payload_bytes = 0;
  send(message.header, std::move(answer));
}

void expert_host_state::send(const micro_batch_header& request, micro_batch answer) {
  const endpoint to{request.source_node, request.source_slot, request.source_incarnation};
  if (!try_send(to, answer)) unsent_.emplace_back(to, std::move(answer));
}

// Returns false when the wire has no credit for that peer now. A peer that is gone needs no answer.
bool expert_host_state::try_send(const endpoint& to, const micro_batch& answer) {
  const auto sent = environment_.data_plane->send(to, answer);
  return sent || sent.failure().code != errc::exhausted;
}

// Each waiting answer is tried: one frozen peer must not hold up the others'.
void expert_host_state::send_unsent() {
  std::erase_if(unsent_, [this](const auto& waiting) { return try_send(waiting.first, waiting.second); });
}

std::unique_ptr<dispatch_work> expert_host_state::take_work() {
  std::unique_ptr<dispatch_work> work;
  if (spare_.empty()) {
    work = std::make_unique<dispatch_work>();
  } else {
    work = std::move(spare_.back());
    spare_.pop_back();
  }
  work->bad_output = false;
  work->compute_ns = work->computed_until_ns = 0;
  work->listener = this;
  return work;
}

}  // namespace troupe
