#include "runtime/device/device_queue.hpp"

#include <algorithm>

namespace troupe {

void device_queue::push(stage_task& task) {
  stages_[ranks_[index_of(task.label().kind)]].push_back(&task);
  ++waiting_;
}

bool device_queue::push(const expert_task& task) {
  experts_.push_back(task);
  auto& work = *task.work;
  if (++work.experts_queued == 1) gathering_.arrived(row_stream::of(work.request.header), task.layer);
  if (work.experts_queued < work.experts) return false;
  const bool held = held_until_ns_ != 0 && task.layer < held_since_ns_.size() && held_since_ns_[task.layer] != 0;
  if (!held) return true;
  look_at_layers();
  return best_layer()->all_there;
}

void device_queue::clear() {
  for (auto& list : stages_) list.clear();
  waiting_ = 0;
  experts_.clear();
}

stage_task* device_queue::take(uint64_t now_ns, uint64_t pass_ns, std::vector<expert_task>& group) {
  group.clear();
  held_until_ns_ = 0;
  look_at_layers();
  const waiting_layer* best = best_layer();
  const bool all_there = best != nullptr && best->all_there;
  const size_t before_experts = all_there ? ranks_[index_of(stage_kind::mlp)] : stage_kind_count;
  for (size_t rank = 0; rank < before_experts && waiting_ != 0; ++rank) {
    if (stages_[rank].empty()) continue;
    stage_task* next = stages_[rank].front();
    stages_[rank].pop_front();
    --waiting_;
    return next;
  }
  if (best == nullptr) return nullptr;
  if (!all_there) {
    best = held_for_long(now_ns, pass_ns);
    if (best == nullptr) return nullptr;
    gathering_.waited_in_vain(best->layer, best->streams);
  }
  gathering_.launched(best->streams);
  take_layer(*best, group);
  return nullptr;
}

void device_queue::take_layer(const waiting_layer& taken, std::vector<expert_task>& group) {
  size_t kept = 0;
  for (size_t i = 0; i < experts_.size(); ++i) {
    if (experts_[i].layer == taken.layer)
      group.push_back(experts_[i]);
    else
      experts_[kept++] = experts_[i];
  }
  experts_.resize(kept);
  if (taken.layer < held_since_ns_.size()) held_since_ns_[taken.layer] = 0;
  std::stable_sort(group.begin(), group.end(),
                   [](const expert_task& a, const expert_task& b) { return a.expert < b.expert; });
}

// The best of those that have been held for as long as is worth it; if there is none, says until when to hold.
const device_queue::waiting_layer* device_queue::held_for_long(uint64_t now_ns, uint64_t pass_ns) {
  const waiting_layer* best = nullptr;
  uint64_t first_ns = 0;
  for (size_t i = 0; i < layers_used_; ++i) {
    const auto& one = layers_[i];
    if (held_since_ns_.size() <= one.layer) held_since_ns_.resize(size_t{one.layer} + 1);
    auto& since_ns = held_since_ns_[one.layer];
    if (since_ns == 0) since_ns = std::max<uint64_t>(now_ns, 1);
    const uint64_t until_ns = since_ns + gathering::wait_max * pass_ns * one.experts;
    if (until_ns <= now_ns && (best == nullptr || one.goes_before(*best))) best = &one;
    first_ns = first_ns == 0 ? until_ns : std::min(first_ns, until_ns);
  }
  if (best == nullptr) held_until_ns_ = first_ns;
  return best;
}

bool device_queue::waiting_layer::goes_before(const waiting_layer& other) const {
  if (all_there != other.all_there) return all_there;
  if (shards != other.shards) return shards > other.shards;
  return lowest_shard < other.lowest_shard;
}

// Which layer's experts go first; null when none wait.
const device_queue::waiting_layer* device_queue::best_layer() const {
  const waiting_layer* best = nullptr;
  for (size_t i = 0; i < layers_used_; ++i)
    if (best == nullptr || layers_[i].goes_before(*best)) best = &layers_[i];
  return best;
}

void device_queue::look_at_layers() {
  layers_used_ = 0;
  const dispatch_work* last = nullptr;
  for (const auto& task : experts_) {
    if (task.work == last) continue;  // its other tasks are of the same layer and stream
    last = task.work;
    size_t at = 0;
    while (at < layers_used_ && layers_[at].layer != task.layer) ++at;
    if (at == layers_used_) {
      if (layers_.size() == at) layers_.emplace_back();
      auto& fresh = layers_[at];
      fresh.layer = task.layer;
      fresh.streams.clear();
      fresh.shards = fresh.experts = 0;
      fresh.lowest_shard = ~0U;
      fresh.all_there = true;
      ++layers_used_;
    }
    note(layers_[at], *task.work);
  }
  for (size_t i = 0; i < layers_used_; ++i) {
    auto& one = layers_[i];
    if (gathering_.expects_more(one.layer, one.streams)) one.all_there = false;
  }
}

void device_queue::note(waiting_layer& at, const dispatch_work& work) const {
  const auto stream = row_stream::of(work.request.header);
  at.experts = std::max(at.experts, work.experts_queued);
  if (work.experts_queued < work.experts) at.all_there = false;
  if (std::find(at.streams.begin(), at.streams.end(), stream) != at.streams.end()) return;
  const bool another = std::none_of(at.streams.begin(), at.streams.end(),
                                    [&](const row_stream& one) { return one.shard() == stream.shard(); });
  at.shards += another ? 1 : 0;
  at.lowest_shard = std::min(at.lowest_shard, stream.shard());
  at.streams.push_back(stream);
}

}  // namespace troupe
