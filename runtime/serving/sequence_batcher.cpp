#include "runtime/serving/sequence_batcher.hpp"

#include <algorithm>
#include <string>

namespace troupe {

sequence_batcher::sequence_batcher(batcher_options options, kv_cache& cache) : options_(options), cache_(cache) {}

result<void> sequence_batcher::add(std::unique_ptr<sequence> added) {
  const auto known = by_request_.find(added->request);
  if (known != by_request_.end()) {
    const sequence& older = *sequences_.at(known->second);
    if (older.attempt >= added->attempt) return {};  // a repeated or late message
    cancel(older.request, older.attempt);
  }
  if (sequences_.size() >= options_.sequences_max)
    return error{errc::exhausted, "the shard already holds " + std::to_string(options_.sequences_max) + " sequences"};
  const int64_t positions = int64_t{added->prompt_tokens} + added->max_tokens;
  if (cache_.blocks_for(positions) > cache_.block_count())
    return error{errc::invalid_argument, "prompt and completion take " + std::to_string(positions) +
                                             " positions; a shard's KV cache has " +
                                             std::to_string(cache_.block_count() * kernels::kv_layout::tokens)};
  added->arrival = arrivals_++;
  by_request_[added->request] = added->arrival;
  sequences_.emplace(added->arrival, std::move(added));
  admit();
  return {};
}

bool sequence_batcher::cancel(request_id request, uint32_t attempt) {
  sequence* found = find(request, attempt);
  if (found == nullptr) return false;
  if (found->in_flight) {
    found->cancelled = true;
    by_request_.erase(request);  // a newer attempt may arrive before the micro-batch ends
  } else {
    drop(*found);
    admit();
  }
  return true;
}

bool sequence_batcher::pick(std::vector<batch_row>& rows) {
  rows.clear();
  uint32_t decoding = 0;
  uint32_t prefilling = 0;
  for (const auto& [arrival, s] : sequences_) {
    decoding += s->phase == sequence::state::decoding ? 1 : 0;
    prefilling += s->phase == sequence::state::prefill ? 1 : 0;
  }
  const auto share = [&](uint32_t count) { return (count + options_.micro_batches - 1) / options_.micro_batches; };
  uint32_t decode_share = share(decoding);
  uint32_t prefill_share = share(prefilling);
  for (const auto& [arrival, s] : sequences_) {
    if (s->phase != sequence::state::decoding || s->in_flight || decode_share == 0) continue;
    if (rows.size() >= options_.rows_max) break;
    --decode_share;
    s->in_flight = true;
    rows.push_back({s.get(), s->tokens.back(), static_cast<int32_t>(s->computed), true});
  }
  for (const auto& [arrival, s] : sequences_) {
    if (s->phase != sequence::state::prefill || s->in_flight || prefill_share == 0) continue;
    if (rows.size() >= options_.rows_max) break;
    --prefill_share;
    s->in_flight = true;
    const auto total = static_cast<uint32_t>(s->tokens.size());
    const uint32_t room = options_.rows_max - static_cast<uint32_t>(rows.size());
    const uint32_t end = std::min(total, s->computed + std::min(options_.chunk, room));
    for (uint32_t position = s->computed; position < end; ++position)
      rows.push_back({s.get(), s->tokens[position], static_cast<int32_t>(position), position + 1 == total});
  }
  return !rows.empty();
}

bool sequence_batcher::start_decoding(request_id request, uint32_t attempt) {
  sequence* found = find(request, attempt);
  if (found == nullptr || found->phase != sequence::state::placing) return false;
  found->phase = sequence::state::decoding;
  return true;
}

sequence* sequence_batcher::find(request_id request, uint32_t attempt) {
  const auto known = by_request_.find(request);
  if (known == by_request_.end()) return nullptr;
  sequence* found = sequences_.at(known->second).get();
  return found->attempt == attempt ? found : nullptr;
}

// Admits waiting sequences in order of arrival, as far as blocks last.
void sequence_batcher::admit() {
  for (const auto& [arrival, s] : sequences_) {
    if (s->phase != sequence::state::waiting) continue;
    if (!cache_.allocate(cache_.blocks_for(int64_t{s->prompt_tokens} + s->max_tokens), s->blocks)) return;
    s->phase = sequence::state::prefill;
  }
}

void sequence_batcher::drop(sequence& dropped) {
  cache_.release(dropped.blocks);
  const auto known = by_request_.find(dropped.request);
  if (known != by_request_.end() && known->second == dropped.arrival) by_request_.erase(known);
  sequences_.erase(dropped.arrival);
}

}  // namespace troupe
