#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/device/device.hpp"
#include "runtime/error.hpp"
#include "runtime/model/weights.hpp"

namespace troupe {

namespace {

// Rows of one expert that one thread computes together. More rows than this are split between
// threads; the split does not show in the result.
constexpr uint32_t rows_per_item = 128;

// A run of rows of one expert within the group: tasks [first, last) and the rows they hold together.
struct expert_rows {
  size_t first_task = 0;
  size_t last_task = 0;
  uint32_t rows = 0;
};

// One unit of work: rows [begin, end) of an expert's gathered rows.
struct launch_item {
  const expert_rows* rows = nullptr;
  uint32_t begin = 0;
  uint32_t end = 0;
};

void load_row(const dispatch_work& work, uint32_t row, float* out) {
  const auto& header = work.request.header;
  const auto hidden = static_cast<int>(header.hidden);
  const std::byte* source = rows(work.request);
  switch (header.dtype) {
    case wire_dtype::f32: std::memcpy(out, source + size_t{row} * header.hidden * 4, size_t{header.hidden} * 4); return;
    case wire_dtype::bf16:
      kernels::bf16_widen_row(reinterpret_cast<const uint16_t*>(source) + size_t{row} * header.hidden, out, hidden);
      return;
    case wire_dtype::fp8: {
      const auto* codes = reinterpret_cast<const uint8_t*>(source) + size_t{row} * header.hidden;
      const std::byte* scale_at = scales(work.request, row);
      for (int at = 0; at < hidden; at += static_cast<int>(fp8_tile), scale_at += sizeof(float)) {
        float scale = 0;
        std::memcpy(&scale, scale_at, sizeof scale);
        const int end = std::min(hidden, at + static_cast<int>(fp8_tile));
        for (int i = at; i < end; ++i) out[i] = kernels::e4m3_decode(codes[i]) * scale;
      }
      return;
    }
  }
}

// Returns false when a value is NaN or infinite.
bool store_row(dispatch_work& work, uint32_t pair, const float* values) {
  const auto& header = work.answer.header;
  const auto hidden = static_cast<int>(header.hidden);
  bool finite = true;
  for (int i = 0; i < hidden; ++i) finite &= std::isfinite(values[i]);
  std::byte* target = rows(work.answer);
  if (header.dtype == wire_dtype::f32) {
    std::memcpy(target + size_t{pair} * header.hidden * 4, values, size_t{header.hidden} * 4);
  } else {
    kernels::bf16_round_row(values, reinterpret_cast<uint16_t*>(target) + size_t{pair} * header.hidden, hidden);
  }
  return finite;
}

void run_item(const kernels::compute& math, const std::vector<expert_task>& group, const launch_item& item,
              worker_memory& memory) {
  const auto& weights = *group[item.rows->first_task].weights;
  const int m = static_cast<int>(item.end - item.begin);
  const int hidden = weights.gate.k();
  const int width = weights.gate.n();
  const size_t floats = static_cast<size_t>(m) * (2 * static_cast<size_t>(hidden) + 2 * static_cast<size_t>(width));
  auto* x = reinterpret_cast<float*>(memory.workspace.take(floats * sizeof(float)));
  float* gate = x + static_cast<size_t>(m) * hidden;
  float* up = gate + static_cast<size_t>(m) * width;
  float* y = up + static_cast<size_t>(m) * width;

  // Walks the pairs [item.begin, item.end) of the expert's tasks in order.
  const auto for_each_pair = [&](auto&& visit) {
    uint32_t base = 0;
    int row = 0;
    for (size_t t = item.rows->first_task; t < item.rows->last_task; ++t) {
      const auto& task = group[t];
      const uint32_t count = task.end - task.begin;
      for (uint32_t i = 0; i < count; ++i, ++base)
        if (base >= item.begin && base < item.end) visit(*task.work, task.work->order[task.begin + i], row++);
    }
  };

  for_each_pair([&](dispatch_work& work, uint32_t pair, int row) {
    load_row(work, pairs(work.request)[pair].row, x + static_cast<int64_t>(row) * hidden);
  });
  math.matmul(weights.gate, x, hidden, gate, width, m, 0, width, memory.kernel);
  math.matmul(weights.up, x, hidden, up, width, m, 0, width, memory.kernel);
  math.silu_mul(gate, up, gate, m * width);
  math.matmul(weights.down, gate, width, y, hidden, m, 0, hidden, memory.kernel);
  for_each_pair([&](dispatch_work& work, uint32_t pair, int row) {
    if (!store_row(work, pair, y + static_cast<int64_t>(row) * hidden))
      std::atomic_ref(work.bad_output).store(true, std::memory_order_relaxed);
  });
}

}  // namespace

void device_queue::push(stage_task& task) {
  stages_[ranks_[index_of(task.label().kind)]].push_back(&task);
  ++waiting_;
}

void device_queue::clear() {
  for (auto& list : stages_) list.clear();
  waiting_ = 0;
  experts_.clear();
}

stage_task* device_queue::take(std::vector<expert_task>& group) {
  group.clear();
  const waiting_layer* const best = best_layer();
  const bool all_there = best != nullptr && best->sources.size() >= sources_expected_;
  const size_t before_experts = all_there ? ranks_[index_of(stage_kind::mlp)] : stage_kind_count;
  for (size_t rank = 0; rank < before_experts && waiting_ != 0; ++rank) {
    if (stages_[rank].empty()) continue;
    stage_task* next = stages_[rank].front();
    stages_[rank].pop_front();
    --waiting_;
    return next;
  }
  if (best == nullptr) return nullptr;
  note_sources(best->sources.size());
  const uint32_t layer = best->layer;
  size_t kept = 0;
  for (size_t i = 0; i < experts_.size(); ++i) {
    if (experts_[i].layer == layer)
      group.push_back(experts_[i]);
    else
      experts_[kept++] = experts_[i];
  }
  experts_.resize(kept);
  std::stable_sort(group.begin(), group.end(),
                   [](const expert_task& a, const expert_task& b) { return a.expert < b.expert; });
  return nullptr;
}

// Which layer's experts go first; null when none wait.
const device_queue::waiting_layer* device_queue::best_layer() {
  layers_used_ = 0;
  const dispatch_work* last = nullptr;
  for (const auto& task : experts_) {
    if (task.work == last) continue;  // its other tasks are of the same layer and shard
    last = task.work;
    const auto& header = task.work->request.header;
    const uint32_t source = uint32_t{header.source_node} << 16U | header.source_slot;
    size_t at = 0;
    while (at < layers_used_ && layers_[at].layer != task.layer) ++at;
    if (at == layers_used_) {
      if (layers_.size() == at) layers_.emplace_back();
      layers_[at].layer = task.layer;
      layers_[at].sources.clear();
      layers_[at].lowest_source = source;
      ++layers_used_;
    }
    auto& found = layers_[at];
    if (std::find(found.sources.begin(), found.sources.end(), source) != found.sources.end()) continue;
    found.sources.push_back(source);
    found.lowest_source = std::min(found.lowest_source, source);
  }
  const waiting_layer* best = nullptr;
  for (size_t i = 0; i < layers_used_; ++i) {
    const auto& one = layers_[i];
    if (best == nullptr || one.sources.size() > best->sources.size() ||
        (one.sources.size() == best->sources.size() && one.lowest_source < best->lowest_source))
      best = &one;
  }
  return best;
}

void device_queue::note_sources(size_t count) {
  sources_lately_ = std::max(sources_lately_, count);
  sources_expected_ = std::max(sources_expected_, count);
  if (++launches_ < launches_remembered) return;
  sources_expected_ = sources_lately_;
  sources_lately_ = 0;
  launches_ = 0;
}

uint32_t run_expert_group(const kernels::compute& math, std::vector<expert_task>& group, worker_team& team) {
  // Kept between launches so that a steady state allocates nothing; one device runs on one thread.
  thread_local std::vector<expert_rows> experts;
  thread_local std::vector<launch_item> items;
  experts.clear();
  items.clear();
  for (size_t i = 0; i < group.size(); ++i) {
    if (experts.empty() || group[experts.back().first_task].expert != group[i].expert) experts.push_back({i, i, 0});
    experts.back().last_task = i + 1;
    experts.back().rows += group[i].end - group[i].begin;
  }
  for (const auto& rows_of_expert : experts)
    for (uint32_t begin = 0; begin < rows_of_expert.rows; begin += rows_per_item)
      items.push_back({&rows_of_expert, begin, std::min(begin + rows_per_item, rows_of_expert.rows)});
  const auto& launch = items;  // helpers must see the leader's vector, not their own thread's
  team.parallel(static_cast<int>(launch.size()),
                [&](int i, worker_memory& memory) { run_item(math, group, launch[static_cast<size_t>(i)], memory); });
  return static_cast<uint32_t>(experts.size());
}

stage_label label_of(const std::vector<expert_task>& group) {
  const auto* first = &group.front();
  stage_label label;
  label.kind = stage_kind::mlp;
  for (const auto& task : group) {
    label.rows += task.end - task.begin;
    if (&task == &group.front() || task.expert != (&task)[-1].expert) ++label.weight_passes;
    if (task.work->request.delivered_ns < first->work->request.delivered_ns) first = &task;
  }
  const auto& oldest = first->work->request;
  label.slot = oldest.header.source_slot;
  label.micro_batch = oldest.header.micro_batch;
  label.layer = first->layer;
  label.step = oldest.header.step;
  label.sent_ns = oldest.header.send_time_ns;
  label.ready_ns = oldest.delivered_ns;
  return label;
}

void complete_expert_group(const std::vector<expert_task>& group, const stage_time& when) {
  for (const auto& task : group) {
    TROUPE_CHECK(task.work->experts_left > 0, "an expert task was completed twice");
    if (task.work->computed_until_ns != when.end_ns) task.work->compute_ns += when.duration_ns();
    task.work->computed_until_ns = when.end_ns;
    if (--task.work->experts_left == 0) task.work->listener->completed(*task.work);
  }
}

task_cost expert_group_cost(const std::vector<expert_task>& group) {
  task_cost cost;
  const expert_weights* last = nullptr;
  for (const auto& task : group) {
    const double elements = 3.0 * task.weights->gate.n() * task.weights->gate.k();
    cost.flops += 2.0 * elements * (task.end - task.begin);
    if (task.weights != last) cost.bytes += static_cast<double>(task.weights->bytes());
    last = task.weights;
  }
  return cost;
}

}  // namespace troupe
