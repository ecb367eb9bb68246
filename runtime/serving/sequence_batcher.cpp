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
  if (found->in_flight != 0) {
    found->cancelled = true;
    by_request_.erase(request);  // a newer attempt may arrive before the micro-batch ends
  } else {
    drop(*found);
    admit();
  }
  return true;
}

bool sequence_batcher::pick(uint32_t micro_batch, std::span<const double> ahead, std::vector<batch_row>& rows,
                            std::vector<uint32_t>& follows) {
  rows.clear();
  follows.clear();
  pick_decoding(rows);
  pick_prompts(micro_batch, ahead, rows, follows);
  return !rows.empty();
}

void sequence_batcher::pick_decoding(std::vector<batch_row>& rows) {
  uint32_t share = (decoding_rows() + options_.micro_batches - 1) / options_.micro_batches;
  for (const auto& [arrival, s] : sequences_) {
    if (s->phase != sequence::state::decoding || s->in_flight != 0) continue;
    if (share == 0 || rows.size() >= options_.rows_max) return;
    --share;
    s->in_flight = 1;
    rows.push_back({s.get(), s->tokens.back(), static_cast<int32_t>(s->computed), true});
  }
}

uint64_t sequence_batcher::work_of(uint64_t begin, uint64_t end) {
  return (end - begin) * row_work + (end * (end + 1) - begin * (begin + 1)) / 2;
}

void sequence_batcher::pick_prompts(uint32_t micro_batch, std::span<const double> ahead, std::vector<batch_row>& rows,
                                    std::vector<uint32_t>& follows) {
  // What others have still to run counts too: else the last prompt would be one micro-batch's, with none beside it.
  uint64_t work = 0;
  prompt_work_.resize(std::max(prompt_work_.size(), ahead.size()));
  for (size_t i = 0; i < ahead.size(); ++i)
    work += static_cast<uint64_t>(ahead[i] * static_cast<double>(prompt_work_[i]));
  for (const auto& [arrival, s] : sequences_) {
    if (s->phase != sequence::state::prefill) continue;
    const auto total = static_cast<uint32_t>(s->tokens.size());
    work += work_of(s->taken, std::min<uint64_t>(total, s->taken + options_.chunk));
  }
  const uint64_t part = (work + options_.micro_batches - 1) / options_.micro_batches;
  uint32_t idle = 0;
  for (uint32_t i = 0; i < options_.micro_batches; ++i) idle += ahead[i] == 0 ? 1 : 0;
  const uint32_t left_over_min = idle > 1 ? part_rows_min : late_part_rows_min;
  uint64_t filled = 0;
  for (const auto& [arrival, s] : sequences_) {
    if (filled >= part || rows.size() >= options_.rows_max) break;
    const auto total = static_cast<uint32_t>(s->tokens.size());
    if (s->phase != sequence::state::prefill || s->taken >= total || s->cancelled) continue;
    const uint32_t room = options_.rows_max - static_cast<uint32_t>(rows.size());
    const uint32_t end_max = std::min(total, s->taken + std::min(options_.chunk, room));
    uint32_t end = end_max;
    if (filled + work_of(s->taken, end_max) > part) {
      end = s->taken + 1;
      while (end < end_max && filled + work_of(s->taken, end) < part) ++end;
      // Neither this part nor what it leaves over may be tiny.
      if (end - s->taken < part_rows_min || total - end < left_over_min) end = end_max;
    }
    if (s->taken > s->computed && std::find(follows.begin(), follows.end(), s->last_part) == follows.end())
      follows.push_back(s->last_part);
    for (uint32_t position = s->taken; position < end; ++position)
      rows.push_back({s.get(), s->tokens[position], static_cast<int32_t>(position), position + 1 == total});
    filled += work_of(s->taken, end);
    s->taken = end;
    s->last_part = micro_batch;
    ++s->in_flight;
  }
  prompt_work_[micro_batch] = filled;
}

uint32_t sequence_batcher::decoding_rows() const {
  uint32_t count = 0;
  for (const auto& [arrival, s] : sequences_) count += s->phase == sequence::state::decoding ? 1 : 0;
  return count;
}

uint32_t sequence_batcher::prompt_rows() const {
  uint32_t count = 0;
  for (const auto& [arrival, s] : sequences_)
    if (s->phase == sequence::state::prefill)
      count += std::min(static_cast<uint32_t>(s->tokens.size()), s->taken + options_.chunk) - s->computed;
  return count;
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
