#include "actors/api_server.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <bit>
#include <utility>

namespace troupe {

namespace {

// How often requests without a shard ask for one again: a balancer may answer from an older view.
constexpr auto route_period = std::chrono::milliseconds(50);

}  // namespace

api_server_actor::behavior_type api_server_state::start(api_server_actor::stateful_pointer<api_server_state> self,
                                                        api_server_environment environment) {
  self_ = self;
  environment_ = std::move(environment);
  seeds_.seed(environment_.seed);
  if (environment_.positions_max == 0)
    environment_.positions_max = static_cast<uint32_t>(environment_.config->max_position_embeddings);
  return {
      [this](const submit_generation& message) { on_submit(message); },
      [this](const cancel_generation& message) { on_cancel(message); },
      [this](const prompt_route& message) { on_route(message); },
      [this](const tokens_emitted& message) { on_tokens(message); },
      [this](const sequence_failed& message) { on_failed(message); },
      [this](const sequence_moved& message) { on_moved(message); },
      [this](const view_ptr& view) { on_view(view); },
      [this](const tick&) {
        reminders_.again(false);
        for (auto& [id, record] : requests_)
          if (!record.shard) route(record);
      },
  };
}

result<std::vector<int32_t>> api_server_state::prompt_ids(const generation_request& request) const {
  const auto* words = environment_.words.get();
  if (!request.prompt_ids.empty()) {
    for (const int32_t id : request.prompt_ids)
      if (id < 0 || id >= environment_.config->vocab_size)
        return error{errc::invalid_argument, "prompt holds token id " + std::to_string(id) +
                                                 "; the model's ids are 0 to " +
                                                 std::to_string(environment_.config->vocab_size - 1)};
    return request.prompt_ids;
  }
  if (words == nullptr) return error{errc::unsupported, "this server has no tokenizer; give the prompt as token ids"};
  if (!request.messages.empty()) return encode_chat(*words, request.messages, environment_.chat);
  std::vector<int32_t> ids;
  if (const auto bos = words->bos()) ids.push_back(*bos);
  const auto text = words->encode(request.prompt.value_or(""));
  ids.insert(ids.end(), text.begin(), text.end());
  if (ids.empty()) return error{errc::invalid_argument, "the prompt is empty"};
  return ids;
}

result<api_server_state::request_record> api_server_state::accept(const submit_generation& message) {
  const auto& asked = *message.request;
  if (!asked.model.empty() && asked.model != environment_.model_name)
    return error{errc::not_found,
                 "the model '" + asked.model + "' does not exist; this server has '" + environment_.model_name + "'"};
  if (requests_.size() >= environment_.requests_max)
    return error{errc::exhausted, "the server holds " + std::to_string(environment_.requests_max) +
                                      " unfinished requests, its maximum; try again later"};
  auto ids = prompt_ids(asked);
  if (!ids) return ids.failure();
  const uint64_t prompt = ids->size();
  const uint64_t room = environment_.positions_max > prompt ? environment_.positions_max - prompt : 0;
  if (room == 0)
    return error{errc::invalid_argument, "the prompt has " + std::to_string(prompt) +
                                             " tokens; this model's limit is " +
                                             std::to_string(environment_.positions_max) + " with the completion"};
  if (asked.max_tokens && (*asked.max_tokens == 0 || *asked.max_tokens > room))
    return error{errc::invalid_argument, "max_tokens is " + std::to_string(*asked.max_tokens) +
                                             "; with this prompt of " + std::to_string(prompt) +
                                             " tokens it must be between 1 and " + std::to_string(room)};
  auto stops = stop_matcher::make(asked.stop);
  if (!stops) return stops.failure();
  request_record record;
  record.ticket = message.ticket;
  record.asked = message.request;
  record.sink = message.sink;
  record.tokens = *std::move(ids);
  record.prompt_tokens = static_cast<uint32_t>(prompt);
  record.max_tokens =
      asked.max_tokens.value_or(static_cast<uint32_t>(std::min<uint64_t>(environment_.default_max_tokens, room)));
  record.seed = asked.seed ? *asked.seed : seeds_() >> 11U;  // 53 bits: every JSON reader keeps them exact
  if (environment_.words) record.words.emplace(*environment_.words);
  record.stops = *std::move(stops);
  return record;
}

void api_server_state::on_submit(const submit_generation& message) {
  auto accepted = accept(message);
  if (!accepted) {
    (*message.sink)(generation_failed{accepted.failure()});
    return;
  }
  const request_id id{++requests_seen_};
  auto& record = requests_.emplace(id, *std::move(accepted)).first->second;
  record.id = id;
  tickets_[message.ticket] = id;
  environment_.board->write([&](board_snapshot& board) {
    ++board.requests.accepted;
    ++board.requests.running;
    board.requests.prompt_tokens += record.prompt_tokens;
  });
  (*record.sink)(generation_accepted{id.value, record.prompt_tokens, record.seed});
  route(record);
}

void api_server_state::route(request_record& record) {
  record.shard.reset();
  if (reminders_.begin()) self_->delayed_send(self_, route_period, tick{});
  tell(environment_.prefill_balancer,
       route_prompt{record.id, record.attempt, static_cast<uint32_t>(record.tokens.size())});
}

void api_server_state::on_route(const prompt_route& message) {
  const auto known = requests_.find(message.request);
  if (known == requests_.end()) {
    // It was cancelled meanwhile: the balancer's charge goes back.
    if (message.found)
      tell(environment_.prefill_balancer, sequence_ended{message.request, message.attempt, message.shard});
    return;
  }
  auto& record = known->second;
  if (record.attempt != message.attempt || record.shard) return;
  const auto handle = message.found ? shard_handle(message.shard) : nullptr;
  if (!handle || !view_->serves(message.shard)) return;  // routed again soon
  start_at(record, message.shard, handle);
}

void api_server_state::start_at(request_record& record, const shard_ref& shard, const caf::strong_actor_ptr& handle) {
  record.shard = shard;
  const auto& asked = *record.asked;
  tell(handle, start_sequence{record.id, record.attempt, record.tokens, record.prompt_tokens, record.max_tokens,
                              record.seed, std::bit_cast<uint32_t>(asked.temperature),
                              std::bit_cast<uint32_t>(asked.top_p), asked.ignore_eos});
}

void api_server_state::on_tokens(const tokens_emitted& message) {
  for (const auto& token : message.tokens) {
    const auto known = requests_.find(token.request);
    if (known == requests_.end()) continue;
    auto& record = known->second;
    if (record.attempt != token.attempt || record.shard != message.shard || record.committed() != token.index) continue;
    if (commit(record, token)) {
      tickets_.erase(record.ticket);
      requests_.erase(known);
    }
  }
}

bool api_server_state::commit(request_record& record, const emitted_token& token) {
  record.tokens.push_back(token.token);
  environment_.board->write([](board_snapshot& board) { ++board.requests.completion_tokens; });
  generation_delta delta{token.index, {}, {token.token}, {std::bit_cast<float>(token.logprob_bits)}};
  bool stopped = false;
  const auto feed = [&](const std::string& text) {
    auto out = record.stops.push(text);
    delta.text += out.text;
    stopped = stopped || out.stopped;
  };
  if (record.words && token.finish != 1) feed(record.words->push(token.token));
  if (record.words && token.finish != 0 && !stopped) {
    feed(record.words->flush());
    if (!stopped) delta.text += record.stops.flush();
  }
  (*record.sink)(std::move(delta));
  if (!stopped && token.finish == 0) return false;
  if (token.finish == 0) release(record);
  finish(record, stopped || token.finish == 1 ? finish_reason::stop : finish_reason::length);
  return true;
}

void api_server_state::finish(request_record& record, finish_reason reason) {
  environment_.board->write([&](board_snapshot& board) {
    --board.requests.running;
    ++(reason == finish_reason::cancelled ? board.requests.cancelled : board.requests.completed);
  });
  (*record.sink)(generation_finished{reason, record.committed()});
}

// Tells the shard that nobody waits for this sequence any more, so that its blocks are freed.
void api_server_state::release(const request_record& record) {
  if (!record.shard) return;
  tell(shard_handle(*record.shard), cancel_sequence{record.id, record.attempt});
}

void api_server_state::on_failed(const sequence_failed& message) {
  const auto known = requests_.find(message.request);
  if (known == requests_.end() || known->second.attempt != message.attempt) return;
  environment_.board->write([](board_snapshot& board) {
    --board.requests.running;
    ++board.requests.failed;
  });
  (*known->second.sink)(generation_failed{{static_cast<errc>(message.code), message.message}});
  tickets_.erase(known->second.ticket);
  requests_.erase(known);
}

// The old shard has let it go; the new one replays what there is.
void api_server_state::on_moved(const sequence_moved& message) {
  const auto known = requests_.find(message.request);
  if (known == requests_.end()) {
    // It was cancelled meanwhile: the balancer's charge goes back.
    if (view_) tell(view_->decode_balancer, sequence_ended{message.request, message.attempt + 1, message.shard});
    return;
  }
  if (known->second.attempt != message.attempt || !known->second.shard) return;
  auto& record = known->second;
  ++record.attempt;
  record.shard.reset();
  const auto handle = shard_handle(message.shard);
  if (!handle || !view_->serves(message.shard)) return route(record);
  start_at(record, message.shard, handle);
}

void api_server_state::on_cancel(const cancel_generation& message) {
  const auto ticket = tickets_.find(message.ticket);
  if (ticket == tickets_.end()) return;
  const auto known = requests_.find(ticket->second);
  release(known->second);
  finish(known->second, finish_reason::cancelled);
  requests_.erase(known);
  tickets_.erase(ticket);
}

void api_server_state::on_view(const view_ptr& view) {
  view_ = view;
  for (auto& [id, record] : requests_) {
    if (record.shard && view->serves(*record.shard)) continue;
    if (record.shard) {
      release(record);  // a shard that drains is still there
      ++record.attempt;
      environment_.board->write([](board_snapshot& board) { ++board.requests.resumed; });
      spdlog::info("request {} resumes on another shard at token {}", id.value, record.committed());
    }
    route(record);
  }
}

caf::strong_actor_ptr api_server_state::shard_handle(const shard_ref& shard) const {
  if (!view_ || !view_->has(shard)) return nullptr;
  const auto* member = view_->find(shard.node);
  const size_t index = shard.slot - size_t{1};
  return index < member->shards.size() ? member->shards[index] : nullptr;
}

}  // namespace troupe
