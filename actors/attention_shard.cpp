#include "actors/attention_shard.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "actors/actor_runner.hpp"

namespace troupe {

namespace {

// How long rows of an expert without a live replica wait for one.
constexpr auto stranded_deadline = std::chrono::seconds(30);
constexpr auto tick_period = std::chrono::milliseconds(50);
constexpr uint16_t absent = 0xffff;

uint64_t clock_ns(steady_time time) {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count());
}

}  // namespace

attention_shard_actor::behavior_type attention_shard_state::start(
    attention_shard_actor::stateful_pointer<attention_shard_state> self, shard_environment environment) {
  self_ = self;
  environment_ = std::move(environment);
  const auto& settings = environment_.settings;
  const auto& config = *environment_.config;
  const auto& math = environment_.compute->math();
  forward_.emplace(config, *environment_.weights, math, settings.combine == wire_dtype::bf16);
  cache_.emplace(math.layout_kv(config.kv_lora_rank, config.qk_rope_head_dim), config.num_hidden_layers,
                 static_cast<int>(settings.kv_blocks));
  chooser_.emplace(settings.schedule);
  batcher_.emplace(
      batcher_options{settings.rows_max, settings.chunk, chooser_->current().micro_batches, settings.sequences_max},
      *cache_);
  const auto address = caf::actor_cast<caf::actor>(self);
  const uint32_t steps_max = settings.schedule.micro_batches_max();
  for (uint32_t i = 0; i < steps_max; ++i)
    steps_.push_back(std::make_unique<shard_step>(*forward_, *cache_, static_cast<int>(settings.rows_max),
                                                  environment_.self.slot, i, environment_.compute,
                                                  [address, i](stage_kind kind) {
                                                    post(address, stage_done{i, kind});
                                                  }));
  follows_.resize(steps_max);
  held_back_.resize(steps_max);
  ahead_.resize(steps_max);
  payload_row_.assign(settings.rows_max, absent);
  if (settings.rebalance.co_activation) {
    std::vector<bool> moe_layers;
    for (int layer = 0; layer < config.num_hidden_layers; ++layer) moe_layers.push_back(config.is_moe(layer));
    co_activation_.emplace(moe_layers, static_cast<uint32_t>(config.n_routed_experts));
  }
  const uint16_t node = environment_.self.node.value;
  environment_.data_plane->attach(environment_.self.slot,
                                  deliver_to(caf::actor_cast<caf::actor>(address), node, *environment_.data_plane,
                                             [node, compute = environment_.compute](const micro_batch& message) {
                                               compute->account().delivered(message, node);
                                             }));
  return {
      [this](const start_sequence& message) { on_start(message); },
      [this](const cancel_sequence& message) { on_cancel(message); },
      [this](const sequence_placement& message) { on_placement(message); },
      [this](const view_ptr& view) { on_view(view); },
      [this](const micro_batch& answer) { on_answer(answer); },
      [this](const stage_done& done) { on_stage_done(done); },
      [this](const start_steps&) {
        starting_ = false;
        start_idle_steps();
      },
      [this](const tick&) { on_tick(); },
  };
}

steady_time attention_shard_state::now() const { return self_->clock().now(); }

void attention_shard_state::on_start(const start_sequence& message) {
  auto added = std::make_unique<sequence>();
  added->request = message.request;
  added->attempt = message.attempt;
  added->tokens = message.tokens;
  added->prompt_tokens = message.prompt_tokens;
  added->max_tokens = message.max_tokens;
  added->seed = message.seed;
  added->temperature = std::bit_cast<float>(message.temperature_bits);
  added->top_p = std::bit_cast<float>(message.top_p_bits);
  added->ignore_eos = message.ignore_eos;
  if (auto taken = batcher_->add(std::move(added)); !taken) {
    if (view_)
      tell(view_->api_server, sequence_failed{message.request, message.attempt,
                                              static_cast<uint8_t>(taken.failure().code), taken.failure().message});
    end_sequence(message.request, message.attempt);
    return;
  }
  keep_reminded();
  // Behind what has arrived with it: a burst of requests becomes one batch.
  if (!std::exchange(starting_, true)) self_->send(self_, start_steps{});
}

void attention_shard_state::on_cancel(const cancel_sequence& message) {
  batcher_->cancel(message.request, message.attempt);
  end_sequence(message.request, message.attempt);
  start_idle_steps();
}

void attention_shard_state::on_placement(const sequence_placement& message) {
  if (message.shard != environment_.self) {
    // The token that was sampled here has gone to the API server before; the other shard replays it.
    if (!batcher_->cancel(message.request, message.attempt)) return;
    tell(view_->api_server, sequence_moved{message.request, message.attempt, message.shard});
    tell(view_->prefill_balancer, sequence_ended{message.request, message.attempt, environment_.self});
    return start_idle_steps();
  }
  if (batcher_->start_decoding(message.request, message.attempt)) start_idle_steps();
}

void attention_shard_state::on_view(const view_ptr& view) {
  if (view_ && view->epoch <= view_->epoch) return;
  view_ = view;
  std::vector<live_node> live;
  for (const auto& member : view->members) live.push_back({member.node.value, member.incarnation.value});
  router_.update(view->placement, live, environment_.self.node.value, environment_.settings.selection);
  // What was asked of a node that is gone is asked of another replica.
  for (size_t i = 0; i < ledger_.entries().size(); ++i) {
    auto& entry = ledger_.entries()[i];
    if (entry.id == 0) continue;
    const auto incarnation = router_.incarnation(entry.to.node);
    const bool gone = !incarnation || *incarnation != entry.to.incarnation;
    // What has not gone out yet goes by the new table.
    const bool moved = !entry.sent && std::any_of(entry.pairs.begin(), entry.pairs.end(), [&](const owed_pair& pair) {
      return !router_.holds(entry.layer, pair.expert, entry.to.node);
    });
    if (!gone && !moved) continue;
    const uint32_t step_index = entry.step_index;
    const uint32_t attempt = entry.attempt + (gone ? 1 : 0);
    const auto pairs = entry.pairs;
    ledger_.close(entry);
    dispatch_pairs(step_index, pairs, std::nullopt, attempt);
  }
  retry_stranded();
  send_unsent();
  report();
  keep_reminded();
  start_idle_steps();
}

void attention_shard_state::on_answer(const micro_batch& answer) {
  const auto& header = answer.header;
  if (header.kind != message_kind::combine) return;
  auto* entry = ledger_.find(header.dispatch_id);
  if (entry == nullptr || entry->to.node != header.source_node || entry->to.incarnation != header.source_incarnation ||
      entry->step_number != header.step || entry->layer != header.layer)
    return;  // late: the pair was answered by somebody else, or the step has moved on
  const uint32_t step_index = entry->step_index;
  if (header.status != combine_status::ok)
    refused(answer, *entry);
  else
    file(answer, *entry);
  send_unsent();
  advance(step_index);
  tell_epoch();
}

void attention_shard_state::file(const micro_batch& answer, outstanding_dispatch& entry) {
  auto& step = *steps_[entry.step_index];
  const auto& header = answer.header;
  if (header.pair_count != entry.pairs.size() || header.dtype != environment_.settings.combine ||
      header.hidden != static_cast<uint32_t>(environment_.config->hidden_size)) {
    spdlog::warn("shard {}.{}: node {} answered a dispatch in another shape; the answer was dropped",
                 environment_.self.node.value, environment_.self.slot, header.source_node);
    return;
  }
  const uint64_t stride = row_bytes(header.dtype, header.hidden, 1);
  const std::byte* outputs = rows(answer);
  for (size_t i = 0; i < entry.pairs.size(); ++i) step.accept(entry.pairs[i], outputs + i * stride);
  step.keep(answer.payload);
  const auto& plane = *environment_.data_plane;
  const uint16_t here = environment_.self.node.value;
  step.answered_at(header.send_time_ns, answer.delivered_ns,
                   plane.transfer_ns(here, header.source_node, entry.bytes) + header.detail +
                       plane.transfer_ns(header.source_node, here, header.payload_bytes + sizeof header));
  ledger_.close(entry);
}

// A host did not serve a dispatch. A retired epoch or a missing expert is asked again, of another
// replica if there is one; two bad outputs from different replicas are an error of the model.
void attention_shard_state::refused(const micro_batch& answer, outstanding_dispatch& entry) {
  const auto pairs = entry.pairs;
  const uint32_t step_index = entry.step_index;
  const uint32_t attempt = entry.attempt + 1;
  const uint16_t node = entry.to.node;
  const uint32_t layer = entry.layer;
  ledger_.close(entry);
  if (answer.header.status == combine_status::bad_output && attempt > 1) {
    fail_rows(step_index, pairs,
              {errc::internal, "expert " + std::to_string(pairs.front().expert) + " of layer " + std::to_string(layer) +
                                   " (or one served with it) gives NaN or infinity on two replicas"});
    return;
  }
  if (answer.header.status == combine_status::stale_epoch)
    dispatch_pairs(step_index, pairs, std::nullopt, attempt);
  else
    dispatch_pairs(step_index, pairs, node, attempt);
}

void attention_shard_state::on_stage_done(const stage_done& done) {
  const uint32_t step_index = done.micro_batch;
  auto& step = *steps_[step_index];
  if (done.kind == stage_kind::shared) {
    step.shared_done();
    advance(step_index);
    return;
  }
  let_followers_go(step_index);
  if (step.through())
    finish_step(step_index);
  else if (step.at_gate())
    open_layer(step_index);
  else
    go_on(step_index);
}

void attention_shard_state::start_idle_steps() {
  if (!view_) return;
  // A new choice cuts the whole batch anew, so that its micro-batches begin in step.
  const auto running = [](const auto& step) { return !step->idle(); };
  if (cutting_anew_ && std::any_of(steps_.begin(), steps_.end(), running)) return;
  cutting_anew_ = false;
  const auto& choice = chooser_->current();
  for (uint32_t i = 0; i < choice.micro_batches; ++i) {
    auto& step = *steps_[i];
    if (!step.idle()) continue;
    for (size_t j = 0; j < steps_.size(); ++j) ahead_[j] = steps_[j]->ahead();
    if (!batcher_->pick(i, ahead_, step.mutable_batch(), parts_)) continue;
    const bool alone = parts_.empty();
    step.begin(++steps_started_, choice.split_attention, alone, clock_ns(now()));
    follows_[i].clear();
    for (const uint32_t part : parts_) follows_[i].push_back({part, steps_[part]->number()});
    go_on(i);
  }
}

void attention_shard_state::cut_anew() {
  batcher_->share_between(chooser_->current().micro_batches);
  cutting_anew_ = true;
}

// The next attention stage, now or when the keys that it reads have been written.
void attention_shard_state::go_on(uint32_t step_index) {
  held_back_[step_index] = must_wait(step_index);
  if (!held_back_[step_index]) environment_.compute->submit(steps_[step_index]->next());
}

bool attention_shard_state::must_wait(uint32_t step_index) const {
  const auto reads = steps_[step_index]->reads_layer();
  if (!reads) return false;
  return std::any_of(follows_[step_index].begin(), follows_[step_index].end(), [&](const followed_step& earlier) {
    const auto& step = *steps_[earlier.step_index];
    return !step.idle() && step.number() == earlier.step_number && step.written_layer() < *reads;
  });
}

void attention_shard_state::let_followers_go(uint32_t step_index) {
  for (uint32_t i = 0; i < steps_.size(); ++i)
    if (i != step_index && held_back_[i]) go_on(i);
}

void attention_shard_state::open_layer(uint32_t step_index) {
  auto& step = *steps_[step_index];
  step.open_layer();
  if (co_activation_) co_activation_->count(static_cast<uint32_t>(step.layer()), step.routes(), step.top_k());
  pairs_.clear();
  step.unanswered(pairs_);
  dispatch_pairs(step_index, pairs_, std::nullopt, 0);
  send_unsent();
}

void attention_shard_state::dispatch_pairs(uint32_t step_index, std::span<const owed_pair> pairs,
                                           std::optional<uint16_t> avoid, uint32_t attempt) {
  auto& step = *steps_[step_index];
  std::vector<owed_pair> stranded;
  const auto layer = static_cast<uint32_t>(step.layer());
  keys_.clear();
  for (const auto& pair : pairs) {
    const auto& row = step.batch()[pair.row];
    keys_.push_back(row_key(row.owner->request, row.position, layer, pair.expert));
  }
  ledger_.open(step_index, step.number(), layer, pairs, keys_, router_, avoid, attempt, now(), stranded);
  if (!stranded.empty()) stranded_.push_back({step_index, step.number(), std::move(stranded), now()});
}

// Sends what memory and credits allow; the rest waits for an answer or the next tick.
void attention_shard_state::send_unsent() {
  for (auto& entry : ledger_.entries())
    if (entry.id != 0 && !entry.sent) send(entry);
}

void attention_shard_state::send(outstanding_dispatch& entry) {
  const auto& settings = environment_.settings;
  const auto& step = *steps_[entry.step_index];
  const auto hidden = static_cast<uint32_t>(environment_.config->hidden_size);
  uint16_t row_count = 0;
  for (const auto& pair : entry.pairs)
    if (payload_row_[pair.row] == absent) payload_row_[pair.row] = row_count++;
  const auto pair_count = static_cast<uint32_t>(entry.pairs.size());
  const uint64_t bytes = payload_bytes(settings.dispatch, hidden, pair_count, row_count);
  micro_batch message;
  message.payload = environment_.dispatch_pool->acquire(bytes);
  if (message.payload) {
    auto& header = message.header;
    header.kind = message_kind::dispatch;
    header.dtype = settings.dispatch;
    header.source_node = environment_.self.node.value;
    header.source_slot = environment_.self.slot;
    header.source_incarnation = environment_.self.incarnation.value;
    header.micro_batch = entry.step_index;
    header.layer = entry.layer;
    header.step = entry.step_number;
    header.epoch = view_->epoch.value;
    header.attempt = entry.attempt;
    header.dispatch_id = entry.id;
    header.row_count = row_count;
    header.pair_count = pair_count;
    header.hidden = hidden;
    header.payload_bytes = bytes;
    const auto entries = pairs(message);
    std::byte* activations = rows(message);
    const uint64_t stride = settings.dispatch == wire_dtype::fp8 ? hidden : row_bytes(settings.dispatch, hidden, 1);
    uint16_t copied = 0;
    for (size_t i = 0; i < entry.pairs.size(); ++i) {
      const auto& pair = entry.pairs[i];
      const uint16_t row = payload_row_[pair.row];
      entries[i] = {row, pair.expert, pair.k_slot, 0, 0.0F};
      if (row != copied) continue;
      const bool has_scales = settings.dispatch == wire_dtype::fp8;
      step.copy_activation(pair.row, settings.dispatch, activations + row * stride,
                           has_scales ? scales(message, row) : nullptr);
      ++copied;
    }
  }
  for (const auto& pair : entry.pairs) payload_row_[pair.row] = absent;
  if (!message.payload) return;
  const endpoint to{entry.to.node, 0, entry.to.incarnation};
  const auto sent = environment_.data_plane->send(to, std::move(message));
  if (!sent && sent.failure().code == errc::exhausted) return;
  // A peer that cannot be reached is as good as silent: the next view or the deadline decides.
  entry.sent = true;
  entry.epoch = view_->epoch.value;
  entry.bytes = bytes + sizeof(micro_batch_header);
  entry.since = now();
  ledger_.count_sent(entry);
}

void attention_shard_state::advance(uint32_t step_index) {
  auto& step = *steps_[step_index];
  if (step.idle() || step.through() || !step.complete()) return;
  ledger_.close_step(step_index);
  step.close_layer();
  go_on(step_index);
}

void attention_shard_state::finish_step(uint32_t step_index) {
  auto& step = *steps_[step_index];
  const auto sampled = step.sampled();
  tokens_emitted message{environment_.self, {}};
  std::vector<place_sequence> placements;
  std::vector<std::pair<request_id, uint32_t>> ended;
  const auto& eos = environment_.config->eos_token_ids;
  batcher_->finish(step.batch(), [&](sequence& owner, size_t index, bool was_prefill) {
    const auto& drawn = sampled[index];
    emitted_token token{owner.request,
                        owner.attempt,
                        owner.completion_tokens(),
                        drawn.token,
                        std::bit_cast<uint32_t>(drawn.logprob),
                        0};
    owner.tokens.push_back(drawn.token);
    if (!owner.ignore_eos && std::find(eos.begin(), eos.end(), drawn.token) != eos.end())
      token.finish = 1;
    else if (owner.completion_tokens() >= owner.max_tokens)
      token.finish = 2;
    message.tokens.push_back(token);
    if (token.finish != 0) {
      ended.emplace_back(owner.request, owner.attempt);
    } else if (was_prefill) {
      placements.push_back(
          {owner.request, owner.attempt, environment_.self, static_cast<uint32_t>(owner.tokens.size())});
    }
    return token.finish != 0;
  });
  const auto step_rows = static_cast<uint32_t>(step.batch().size());
  step.end();
  if (chooser_->step_ended(step_rows, batcher_->decoding_rows(), batcher_->prompt_rows(), clock_ns(now()))) cut_anew();
  tokens_ += message.tokens.size();
  if (!message.tokens.empty()) tell(view_->api_server, std::move(message));
  for (const auto& placement : placements) tell(view_->decode_balancer, placement);
  for (const auto& [request, attempt] : ended) end_sequence(request, attempt);
  start_idle_steps();
}

// Rows that cannot be computed: their sequences fail, and zeros let the other rows go on.
void attention_shard_state::fail_rows(uint32_t step_index, std::span<const owed_pair> pairs, const error& cause) {
  auto& step = *steps_[step_index];
  for (const auto& pair : pairs) {
    step.give_up(pair);
    const sequence& owner = *step.batch()[pair.row].owner;
    if (owner.cancelled) continue;
    const request_id request = owner.request;
    const uint32_t attempt = owner.attempt;
    tell(view_->api_server, sequence_failed{request, attempt, static_cast<uint8_t>(cause.code), cause.message});
    batcher_->cancel(request, attempt);
    end_sequence(request, attempt);
  }
}

void attention_shard_state::retry_stranded() {
  auto waiting = std::move(stranded_);
  stranded_.clear();
  for (auto& set : waiting) {
    auto& step = *steps_[set.step_index];
    if (step.idle() || step.number() != set.step_number) continue;
    if (now() - set.since > stranded_deadline) {
      fail_rows(set.step_index, set.pairs,
                {errc::unavailable, "no live node holds expert " + std::to_string(set.pairs.front().expert) +
                                        " of layer " + std::to_string(step.layer()) +
                                        "; start a node that does, or raise redundant_replicas"});
      advance(set.step_index);
      continue;
    }
    const auto since = set.since;
    dispatch_pairs(set.step_index, set.pairs, std::nullopt, 1);
    if (!stranded_.empty() && stranded_.back().step_index == set.step_index) stranded_.back().since = since;
  }
}

void attention_shard_state::on_tick() {
  // Without a view there is none: the first one reminds again.
  if (reminders_.again(view_ && busy(), view_ ? ticks_per_round() : 0)) self_->delayed_send(self_, tick_period, tick{});
  if (!view_) return;
  retry_stranded();
  // A dispatch that stays unanswered is repeated, to another replica if there is one; the first answer counts.
  const auto deadline = std::chrono::milliseconds(environment_.settings.dispatch_deadline_ms);
  for (size_t i = 0; i < ledger_.entries().size(); ++i) {
    auto& entry = ledger_.entries()[i];
    if (entry.id == 0 || !entry.sent || entry.repeated || now() - entry.since < deadline) continue;
    std::vector<owed_pair> elsewhere;
    bool only_there = false;
    for (const auto& pair : entry.pairs) {
      if (steps_[entry.step_index]->answered(pair)) continue;
      if (router_.alternative(entry.layer, pair.expert, entry.to.node))
        elsewhere.push_back(pair);
      else
        only_there = true;
    }
    const uint32_t step_index = entry.step_index;
    const uint16_t silent = entry.to.node;
    const uint32_t attempt = entry.attempt + 1;
    entry.repeated = true;
    if (only_there) {
      // No other replica: the same node is asked again, in case the message or its answer was lost. An
      // answer to either counts.
      entry.repeated = false;
      entry.sent = false;
      entry.attempt = attempt;
    }
    if (!elsewhere.empty()) dispatch_pairs(step_index, elsewhere, silent, attempt);
  }
  send_unsent();
  report();
  if (co_activation_) tell_co_activation();
}

void attention_shard_state::keep_reminded() {
  if (reminders_.begin()) self_->delayed_send(self_, tick_period, tick{});
}

bool attention_shard_state::busy() {
  const auto running = [](const auto& step) { return !step->idle(); };
  const auto open = [](const auto& entry) { return entry.id != 0; };
  return batcher_->size() > 0 || !stranded_.empty() || std::any_of(steps_.begin(), steps_.end(), running) ||
         std::any_of(ledger_.entries().begin(), ledger_.entries().end(), open);
}

// In the time between two loads.
uint32_t attention_shard_state::ticks_per_round() const {
  const std::chrono::milliseconds between(heartbeats_per_load * environment_.settings.heartbeat_ms);
  return std::max(1U, static_cast<uint32_t>(between / tick_period));
}

// Some layers at each tick, all in the time between two loads, so that no step waits while millions of pairs are read.
void attention_shard_state::tell_co_activation() {
  const uint32_t ticks = ticks_per_round();
  const uint32_t turn = ticks_++ % ticks;
  const uint32_t layers = co_activation_->layers();
  for (uint32_t layer = layers * turn / ticks; layer < layers * (turn + 1) / ticks; ++layer)
    if (auto chosen = co_activation_->take(layer); !chosen.pairs.empty())
      tell(view_->expert_balancer, co_activation{environment_.self, std::move(chosen)});
}

void attention_shard_state::end_sequence(request_id request, uint32_t attempt) {
  const sequence_ended message{request, attempt, environment_.self};
  if (!view_) return;
  tell(view_->decode_balancer, message);
  tell(view_->prefill_balancer, message);
}

// An epoch is taken up when no answer is awaited under an older one: then old replicas may go. The experts that move
// wait for it, so it is told at once.
void attention_shard_state::tell_epoch() {
  if (told_epoch_ != view_->epoch.value && ledger_.oldest_epoch(view_->epoch.value) != told_epoch_) report();
}

void attention_shard_state::report() {
  shard_report message;
  message.slot = environment_.self.slot;
  told_epoch_ = ledger_.oldest_epoch(view_->epoch.value);
  message.epoch = epoch_id{told_epoch_};
  message.counters.steps = steps_started_;
  message.counters.tokens = tokens_;
  message.counters.sequences = batcher_->size();
  message.counters.kv_blocks_free = static_cast<uint64_t>(cache_->free_count());
  message.counters.kv_blocks = static_cast<uint64_t>(cache_->block_count());
  message.counters.dispatches_sent = ledger_.sent_count();
  message.counters.dispatches_resent = ledger_.resent_count();
  message.counters.micro_batches = chooser_->current().micro_batches;
  message.counters.schedule_switches = chooser_->switches();
  for (const auto& step : steps_) message.counters.chain_ns = std::max(message.counters.chain_ns, step->chain_ns());
  message.schedule_reason = chooser_->reason();
  caf::anon_send(environment_.node, message);
}

}  // namespace troupe
