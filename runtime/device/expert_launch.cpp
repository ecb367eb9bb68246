#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/device/device.hpp"
#include "runtime/device/expert_products.hpp"
#include "runtime/error.hpp"
#include "runtime/model/weights.hpp"

namespace troupe {

namespace {

// A device's working memory, kept between launches so that a steady state allocates nothing.
struct launch_memory {
  std::vector<expert_batch> experts;
  std::vector<int> first_rows;        // [experts] of all rows of the launch
  std::vector<dispatch_work*> works;  // [rows]
  std::vector<uint32_t> pairs;        // [rows] pair of the work
  std::vector<std::byte*> outputs;    // [rows]
  expert_products products;
};

// Makes a dispatched row row `at` of a product's input.
void load_row(const kernels::compute& math, const dispatch_work& work, uint32_t row, int at, std::byte* input,
              worker_memory& memory) {
  const auto& header = work.request.header;
  const auto hidden = static_cast<int>(header.hidden);
  const std::byte* source = rows(work.request);
  switch (header.dtype) {
    case wire_dtype::f32:
      math.input_row(reinterpret_cast<const float*>(source) + size_t{row} * header.hidden, at, hidden, input);
      return;
    case wire_dtype::bf16:
      math.input_row(reinterpret_cast<const uint16_t*>(source) + size_t{row} * header.hidden, at, hidden, input);
      return;
    case wire_dtype::fp8: {
      auto* wide = reinterpret_cast<float*>(memory.workspace.take(size_t{header.hidden} * sizeof(float)));
      const auto* codes = reinterpret_cast<const uint8_t*>(source) + size_t{row} * header.hidden;
      const std::byte* scale_at = scales(work.request, row);
      for (int begin = 0; begin < hidden; begin += static_cast<int>(fp8_tile), scale_at += sizeof(float)) {
        float scale = 0;
        std::memcpy(&scale, scale_at, sizeof scale);
        const int end = std::min(hidden, begin + static_cast<int>(fp8_tile));
        for (int i = begin; i < end; ++i) wide[i] = kernels::e4m3_decode(codes[i]) * scale;
      }
      math.input_row(wide, at, hidden, input);
      return;
    }
  }
}

kernels::element output_kind(const dispatch_work& work) {
  return work.answer.header.dtype == wire_dtype::f32 ? kernels::element::f32 : kernels::element::bf16;
}

// Marks the works among an expert's rows whose outputs hold NaN or infinity in columns [begin, end).
void mark_bad_rows(launch_memory& space, int expert, int begin, int end) {
  const auto index = static_cast<size_t>(expert);
  for (int row = 0; row < space.experts[index].rows; ++row) {
    const auto at = static_cast<size_t>(space.first_rows[index] + row);
    const bool bf16 = output_kind(*space.works[at]) == kernels::element::bf16;
    bool finite = true;
    for (int j = begin; j < end; ++j)
      finite &= std::isfinite(bf16 ? kernels::bf16_widen(reinterpret_cast<const uint16_t*>(space.outputs[at])[j])
                                   : reinterpret_cast<const float*>(space.outputs[at])[j]);
    if (!finite) std::atomic_ref(space.works[at]->bad_output).store(true, std::memory_order_relaxed);
  }
}

// Lists the launch's experts and their rows.
void lay_out(const std::vector<expert_task>& group, launch_memory& space) {
  space.experts.clear();
  space.first_rows.clear();
  space.works.clear();
  space.pairs.clear();
  space.outputs.clear();
  for (size_t i = 0; i < group.size(); ++i) {
    const auto& task = group[i];
    if (i == 0 || group[i - 1].expert != task.expert) {
      space.first_rows.push_back(static_cast<int>(space.works.size()));
      space.experts.push_back({task.weights, 0, nullptr, output_kind(*task.work)});
    }
    space.experts.back().rows += static_cast<int>(task.end - task.begin);
    const auto& answer = task.work->answer.header;
    const size_t row_bytes = size_t{answer.hidden} * (answer.dtype == wire_dtype::f32 ? 4 : 2);
    for (uint32_t at = task.begin; at < task.end; ++at) {
      const uint32_t pair = task.work->order[at];
      space.works.push_back(task.work);
      space.pairs.push_back(pair);
      space.outputs.push_back(rows(task.work->answer) + size_t{pair} * row_bytes);
    }
  }
  for (size_t i = 0; i < space.experts.size(); ++i)
    space.experts[i].outputs = space.outputs.data() + space.first_rows[i];
}

}  // namespace

uint32_t run_expert_group(const kernels::compute& math, std::vector<expert_task>& group, worker_team& team) {
  thread_local launch_memory kept;  // one device runs on one thread
  auto& space = kept;               // helpers must see the leader's, not their own thread's
  lay_out(group, space);
  const auto load = [&](int expert, int row, int, std::byte* input, worker_memory& memory) {
    const auto at = static_cast<size_t>(space.first_rows[static_cast<size_t>(expert)] + row);
    const auto& work = *space.works[at];
    load_row(math, work, troupe::pairs(work.request)[space.pairs[at]].row, row, input, memory);
  };
  const auto bad = [&](int expert, int begin, int end) { mark_bad_rows(space, expert, begin, end); };
  space.products.run(math, space.experts, load, bad, team);
  return static_cast<uint32_t>(space.experts.size());
}

stage_label label_of(const std::vector<expert_task>& group) {
  const auto* first = &group.front();
  const auto* last = &group.front();  // it was waited for
  stage_label label;
  label.kind = stage_kind::mlp;
  for (const auto& task : group) {
    label.rows += task.end - task.begin;
    if (&task == &group.front() || task.expert != (&task)[-1].expert) ++label.weight_passes;
    if (task.work->request.delivered_ns < first->work->request.delivered_ns) first = &task;
    if (task.work->request.delivered_ns > last->work->request.delivered_ns) last = &task;
  }
  const auto& oldest = first->work->request;
  label.slot = oldest.header.source_slot;
  label.micro_batch = oldest.header.micro_batch;
  label.layer = first->layer;
  label.step = oldest.header.step;
  label.sent_ns = last->work->request.header.send_time_ns;
  label.ready_ns = last->work->request.delivered_ns;
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
