#include "actors/balancers.hpp"

#include <algorithm>

namespace troupe {

void shard_table::update(const cluster_view& view) {
  shards_.clear();
  handles_.clear();
  for (const auto& member : view.members)
    for (uint16_t i = 0; i < member.shards.size() && !member.draining; ++i) {
      shards_.push_back({member.node, member.incarnation, static_cast<uint16_t>(1 + i)});
      handles_.push_back(member.shards[i]);
    }
  std::erase_if(requests_, [&](const auto& entry) { return !index(entry.second.shard); });
  loads_.assign(shards_.size(), {});
  for (const auto& [request, entry] : requests_) add(entry, 1);
}

std::optional<size_t> shard_table::index(const shard_ref& shard) const {
  const auto at = std::find(shards_.begin(), shards_.end(), shard);
  if (at == shards_.end()) return std::nullopt;
  return static_cast<size_t>(at - shards_.begin());
}

void shard_table::charge(request_id request, uint32_t attempt, size_t index, uint32_t tokens) {
  const auto known = requests_.find(request);
  if (known != requests_.end()) {
    if (known->second.attempt > attempt) return;
    add(known->second, -1);
  }
  const charged entry{attempt, shards_[index], tokens};
  requests_[request] = entry;
  add(entry, 1);
}

void shard_table::release(request_id request, uint32_t attempt) {
  const auto known = requests_.find(request);
  if (known == requests_.end() || known->second.attempt != attempt) return;
  add(known->second, -1);
  requests_.erase(known);
}

void shard_table::add(const charged& entry, int sign) {
  const auto at = index(entry.shard);
  if (!at) return;
  auto& load = loads_[*at];
  const auto change = [sign](uint64_t& value, uint64_t by) { value = sign > 0 ? value + by : value - by; };
  change(load.requests, 1);
  change(load.tokens, entry.tokens);
  change(load.attention_work, attention_work(entry.tokens));
}

std::optional<size_t> shard_table::charged_to(request_id request) const {
  const auto known = requests_.find(request);
  return known == requests_.end() ? std::nullopt : index(known->second.shard);
}

prefill_balancer_actor::behavior_type prefill_balancer(
    prefill_balancer_actor::stateful_pointer<prefill_balancer_state> self, prefill_choice choose,
    std::shared_ptr<cluster_board> board) {
  const auto show = [self, board] {
    board->write([&](board_snapshot& shown) { shown.prefill = self->state.balance(); });
  };
  return {
      [self, choose, show](const route_prompt& message) {
        auto& state = self->state;
        if (!state.view) return;
        prompt_route answer{message.request, message.attempt, false, {}};
        if (!state.table.empty()) {
          const size_t chosen = choose(state.table.loads(), message.prompt_tokens, state.turns++);
          answer.found = true;
          answer.shard = state.table.shards()[chosen];
          state.table.charge(message.request, message.attempt, chosen, message.prompt_tokens);
        }
        tell(state.view->api_server, answer);
        show();
      },
      [self, show](const sequence_ended& message) {
        self->state.table.release(message.request, message.attempt);
        show();
      },
      [self, show](const view_ptr& view) {
        self->state.view = view;
        self->state.table.update(*view);
        show();
      },
  };
}

decode_balancer_actor::behavior_type decode_balancer(
    decode_balancer_actor::stateful_pointer<decode_balancer_state> self, decode_choice choose,
    std::shared_ptr<cluster_board> board) {
  const auto show = [self, board] {
    board->write([&](board_snapshot& shown) { shown.decode = self->state.balance(); });
  };
  return {
      [self, choose, show](const place_sequence& message) {
        auto& state = self->state;
        auto& table = state.table;
        const auto holder = table.index(message.holder);
        if (!holder) return;  // that shard is gone; the API server resumes its sequences elsewhere
        // A sequence that was sent to this shard is here to stay.
        const bool arrived = table.charged_to(message.request) == holder;
        const size_t chosen = arrived ? *holder : choose(*holder, table.loads(), state.turns++);
        // Where it moves it is another attempt.
        table.charge(message.request, message.attempt + (chosen == *holder ? 0 : 1), chosen, message.kv_tokens);
        tell(table.handle(*holder), sequence_placement{message.request, message.attempt, table.shards()[chosen]});
        show();
      },
      [self, show](const sequence_ended& message) {
        self->state.table.release(message.request, message.attempt);
        show();
      },
      [self, show](const view_ptr& view) {
        self->state.view = view;
        self->state.table.update(*view);
        show();
      },
  };
}

}  // namespace troupe
