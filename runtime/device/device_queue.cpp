#include "runtime/device/device_queue.hpp"

#include <algorithm>

namespace troupe {

namespace {

// So many rows of an expert take about as long to multiply as its weights take to read.
constexpr uint64_t rows_of_a_reading = 32;

}  // namespace

void device_queue::push(stage_task& task) {
  stages_[ranks_[index_of(task.label().kind)]].push_back(&task);
  ++waiting_;
}

bool device_queue::push(const expert_task& task) {
  experts_.push_back(task);
  auto& work = *task.work;
  if (++work.experts_queued == 1) gathering_.arrived(row_stream::of(work.request.header), task.layer);
  if (work.experts_queued < work.experts) return false;
  if (held_until_ns_ == 0 || find_held(task.layer, micro_batch_of(task)) == held_.end()) return true;
  look_at_groups();
  return best_group()->all_there;
}

std::optional<uint32_t> device_queue::micro_batch_of(const expert_task& task) const {
  return apart_ ? std::optional(task.work->request.header.micro_batch) : std::nullopt;
}

void device_queue::clear() {
  for (auto& list : stages_) list.clear();
  waiting_ = 0;
  experts_.clear();
  held_.clear();
}

stage_task* device_queue::take(uint64_t now_ns, uint64_t pass_ns, std::vector<expert_task>& group) {
  group.clear();
  held_until_ns_ = 0;
  look_at_groups();
  waiting_group* best = best_group();
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
    gathering_.waited_in_vain(best->layer, best->micro_batch, best->streams);
  }
  forget_held(*best);
  take_more(*best);
  gathering_.launched(best->streams);
  take_group(*best, group);
  return nullptr;
}

// Rows of the layer's other micro-batches, where the launch would read the weights for few rows.
void device_queue::take_more(waiting_group& taken) {
  if (taken.rows > rows_of_a_reading * taken.experts) return;
  for (const auto& one : groups()) {
    if (&one == &taken || one.layer != taken.layer) continue;
    taken.streams.insert(taken.streams.end(), one.streams.begin(), one.streams.end());
    forget_held(one);
  }
}

void device_queue::take_group(const waiting_group& taken, std::vector<expert_task>& group) {
  const auto& streams = taken.streams;
  size_t kept = 0;
  for (size_t i = 0; i < experts_.size(); ++i) {
    const auto stream = row_stream::of(experts_[i].work->request.header);
    if (experts_[i].layer == taken.layer && std::find(streams.begin(), streams.end(), stream) != streams.end())
      group.push_back(experts_[i]);
    else
      experts_[kept++] = experts_[i];
  }
  experts_.resize(kept);
  std::stable_sort(group.begin(), group.end(),
                   [](const expert_task& a, const expert_task& b) { return a.expert < b.expert; });
}

void device_queue::forget_held(const waiting_group& taken) {
  if (const auto held = find_held(taken.layer, taken.micro_batch); held != held_.end()) held_.erase(held);
}

std::vector<device_queue::held_group>::iterator device_queue::find_held(uint32_t layer,
                                                                        std::optional<uint32_t> micro_batch) {
  return std::find_if(held_.begin(), held_.end(),
                      [&](const held_group& one) { return one.layer == layer && one.micro_batch == micro_batch; });
}

// The best of those that have been held for as long as is worth it; if there is none, says until when to hold.
device_queue::waiting_group* device_queue::held_for_long(uint64_t now_ns, uint64_t pass_ns) {
  waiting_group* best = nullptr;
  uint64_t first_ns = 0;
  for (auto& one : groups()) {
    auto held = find_held(one.layer, one.micro_batch);
    if (held == held_.end()) held = held_.insert(held, {one.layer, one.micro_batch, now_ns});
    const uint64_t until_ns = held->since_ns + gathering::wait_max * pass_ns * one.experts;
    if (until_ns <= now_ns && (best == nullptr || one.goes_before(*best))) best = &one;
    first_ns = first_ns == 0 ? until_ns : std::min(first_ns, until_ns);
  }
  if (best == nullptr) held_until_ns_ = first_ns;
  return best;
}

bool device_queue::waiting_group::goes_before(const waiting_group& other) const {
  if (all_there != other.all_there) return all_there;
  if (shards != other.shards) return shards > other.shards;
  return lowest_shard < other.lowest_shard;
}

// Which rows go first; null when none wait.
device_queue::waiting_group* device_queue::best_group() {
  waiting_group* best = nullptr;
  for (auto& one : groups())
    if (best == nullptr || one.goes_before(*best)) best = &one;
  return best;
}

void device_queue::look_at_groups() {
  groups_used_ = 0;
  const dispatch_work* last = nullptr;
  for (const auto& task : experts_) {
    if (task.work == last) continue;  // its other tasks are of the same layer and stream
    last = task.work;
    const auto micro_batch = micro_batch_of(task);
    size_t at = 0;
    while (at < groups_used_ && !(groups_[at].layer == task.layer && groups_[at].micro_batch == micro_batch)) ++at;
    if (at == groups_used_) {
      if (groups_.size() == at) groups_.emplace_back();
      auto& fresh = groups_[at];
      fresh.layer = task.layer;
      fresh.micro_batch = micro_batch;
      fresh.streams.clear();
      fresh.shards = fresh.experts = 0;
      fresh.rows = 0;
      fresh.lowest_shard = ~0U;
      fresh.all_there = true;
      ++groups_used_;
    }
    note(groups_[at], *task.work);
  }
  for (auto& one : groups())
    if (gathering_.expects_more(one.layer, one.micro_batch, one.streams)) one.all_there = false;
}

void device_queue::note(waiting_group& at, const dispatch_work& work) const {
  const auto stream = row_stream::of(work.request.header);
  at.experts = std::max(at.experts, work.experts_queued);
  if (work.experts_queued < work.experts) at.all_there = false;
  if (std::find(at.streams.begin(), at.streams.end(), stream) != at.streams.end()) return;
  const bool another = std::none_of(at.streams.begin(), at.streams.end(),
                                    [&](const row_stream& one) { return one.shard() == stream.shard(); });
  at.shards += another ? 1 : 0;
  at.lowest_shard = std::min(at.lowest_shard, stream.shard());
  at.streams.push_back(stream);
  at.rows += work.order.size();
}

}  // namespace troupe
