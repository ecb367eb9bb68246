#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/device/device.hpp"
#include "runtime/error.hpp"
#include "runtime/model/weights.hpp"

namespace troupe {

namespace {

// The rows of one expert within a launch: tasks [first_task, last_task) of the group.
struct expert_rows {
  size_t first_task = 0;
  size_t last_task = 0;
  int first_row = 0;  // of all rows of the launch
  int rows = 0;
  size_t input_at = 0;   // in launch_memory::inputs, in bytes
  size_t hidden_at = 0;  // in launch_memory::hiddens
};

// A device's working memory, kept between launches so that a steady state allocates nothing.
struct launch_memory {
  std::vector<expert_rows> experts;
  std::vector<dispatch_work*> works;  // [rows]
  std::vector<uint32_t> pairs;        // [rows] pair of the work
  std::vector<std::byte*> outputs;    // [rows]
  kernels::scratch input_space, hidden_space;
  std::byte* inputs = nullptr;   // each expert's rows as a product's input
  std::byte* hiddens = nullptr;  // and what lies between its two halves
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
void mark_bad_rows(launch_memory& space, const expert_rows& expert, int begin, int end) {
  for (int i = expert.first_row; i < expert.first_row + expert.rows; ++i) {
    const auto at = static_cast<size_t>(i);
    const bool bf16 = output_kind(*space.works[at]) == kernels::element::bf16;
    bool finite = true;
    for (int j = begin; j < end; ++j)
      finite &= std::isfinite(bf16 ? kernels::bf16_widen(reinterpret_cast<const uint16_t*>(space.outputs[at])[j])
                                   : reinterpret_cast<const float*>(space.outputs[at])[j]);
    if (!finite) std::atomic_ref(space.works[at]->bad_output).store(true, std::memory_order_relaxed);
  }
}

size_t whole_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Lists the launch's experts and their rows.
void lay_out(const kernels::compute& math, const std::vector<expert_task>& group, launch_memory& space) {
  space.experts.clear();
  space.works.clear();
  space.pairs.clear();
  space.outputs.clear();
  for (size_t i = 0; i < group.size(); ++i) {
    const auto& task = group[i];
    if (space.experts.empty() || group[space.experts.back().first_task].expert != task.expert)
      space.experts.push_back({i, i, static_cast<int>(space.works.size()), 0, 0, 0});
    auto& expert = space.experts.back();
    expert.last_task = i + 1;
    expert.rows += static_cast<int>(task.end - task.begin);
    const auto& answer = task.work->answer.header;
    const size_t row_bytes = size_t{answer.hidden} * (answer.dtype == wire_dtype::f32 ? 4 : 2);
    for (uint32_t at = task.begin; at < task.end; ++at) {
      const uint32_t pair = task.work->order[at];
      space.works.push_back(task.work);
      space.pairs.push_back(pair);
      space.outputs.push_back(rows(task.work->answer) + size_t{pair} * row_bytes);
    }
  }
  size_t input_bytes = 0, hidden_bytes = 0;
  for (auto& expert : space.experts) {
    const auto& weights = *group[expert.first_task].weights;
    expert.input_at = input_bytes;
    expert.hidden_at = hidden_bytes;
    input_bytes += whole_lines(math.input_bytes(expert.rows, weights.gate.k()));
    hidden_bytes += whole_lines(math.input_bytes(expert.rows, weights.gate.n()));
  }
  space.inputs = space.input_space.take(input_bytes);
  space.hiddens = space.hidden_space.take(hidden_bytes);
}

// Into how many column ranges each expert's products are cut, so that the threads end together.
int parts_of(size_t experts, int columns, int threads) {
  if (threads == 1) return 1;
  constexpr int items_a_thread = 16, grain = 64;
  const int wanted = static_cast<int>((static_cast<size_t>(threads) * items_a_thread + experts - 1) / experts);
  return std::clamp(wanted, 1, std::max(1, columns / grain));
}

// Calls body(expert, begin, end) for each expert and each of `parts` ranges of its columns, on the team.
template <class Body>
void for_column_ranges(const char* section, const launch_memory& space, int columns, int parts, worker_team& team,
                       Body body) {
  constexpr int grain = 32;
  const int blocks = (columns + grain - 1) / grain;
  team.parallel(section, static_cast<int>(space.experts.size()) * parts, [&](int i, worker_memory&) {
    const int part = i % parts;
    const int begin = blocks * part / parts * grain, end = std::min(columns, blocks * (part + 1) / parts * grain);
    if (begin < end) body(space.experts[static_cast<size_t>(i / parts)], begin, end);
  });
}

}  // namespace

uint32_t run_expert_group(const kernels::compute& math, std::vector<expert_task>& group, worker_team& team) {
  thread_local launch_memory kept;  // one device runs on one thread
  auto& space = kept;               // helpers must see the leader's, not their own thread's
  lay_out(math, group, space);
  const auto& experts = space.experts;
  // A few rows are copied sooner than a helper wakes.
  constexpr size_t few_rows = 32;
  const auto load = [&](int i, worker_memory& memory) {
    const auto& expert = experts[static_cast<size_t>(i)];
    for (int row = 0; row < expert.rows; ++row) {
      const auto at = static_cast<size_t>(expert.first_row + row);
      const auto& work = *space.works[at];
      load_row(math, work, troupe::pairs(work.request)[space.pairs[at]].row, row, space.inputs + expert.input_at,
               memory);
    }
  };
  if (space.works.size() <= few_rows)
    team.alone("expert inputs", static_cast<int>(experts.size()), load);
  else
    team.parallel("expert inputs", static_cast<int>(experts.size()), load);
  const auto weights_of = [&](const expert_rows& expert) -> const expert_weights& {
    return *group[expert.first_task].weights;
  };
  const int width = weights_of(experts.front()).gate.n();
  const int hidden = weights_of(experts.front()).down.n();
  for_column_ranges("expert gate, up", space, width, parts_of(experts.size(), width, team.size()), team,
                    [&](const expert_rows& expert, int begin, int end) {
                      const auto& weights = weights_of(expert);
                      math.gated_matmul(weights.gate, weights.up,
                                        {space.inputs + expert.input_at, expert.rows, weights.gate.k()},
                                        space.hiddens + expert.hidden_at, begin, end);
                    });
  for_column_ranges("expert down", space, hidden, parts_of(experts.size(), hidden, team.size()), team,
                    [&](const expert_rows& expert, int begin, int end) {
                      const auto& weights = weights_of(expert);
                      const auto kind = output_kind(*space.works[static_cast<size_t>(expert.first_row)]);
                      if (!math.matmul_apart(weights.down, {space.hiddens + expert.hidden_at, expert.rows, width}, kind,
                                             space.outputs.data() + expert.first_row, begin, end))
                        mark_bad_rows(space, expert, begin, end);
                    });
  return static_cast<uint32_t>(experts.size());
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
