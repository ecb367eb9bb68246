#include "runtime/device/expert_products.hpp"

#include <algorithm>

namespace troupe {

namespace {

size_t whole_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Into how many column ranges each expert's products are cut, so that the threads end together.
int parts_of(size_t experts, int columns, int threads) {
  if (threads == 1) return 1;
  constexpr int items_a_thread = 16, grain = 64;
  const int wanted = static_cast<int>((static_cast<size_t>(threads) * items_a_thread + experts - 1) / experts);
  return std::clamp(wanted, 1, std::max(1, columns / grain));
}

// Calls body(expert, begin, end) for each expert and each of `parts` ranges of its columns, on the team.
template <class Body>
void for_column_ranges(const char* section, size_t experts, int columns, int parts, worker_team& team, Body body) {
  constexpr int grain = 32;
  const int blocks = (columns + grain - 1) / grain;
  team.parallel(section, static_cast<int>(experts) * parts, [&](int i, worker_memory&) {
    const int part = i % parts;
    const int begin = blocks * part / parts * grain, end = std::min(columns, blocks * (part + 1) / parts * grain);
    if (begin < end) body(i / parts, begin, end);
  });
}

}  // namespace

bool expert_products::computes_whole(size_t experts, int width, int threads) {
  return parts_of(experts, width, threads) == 1;
}

void expert_products::run(const kernels::compute& math, std::span<const expert_batch> experts, load_row load,
                          found_bad bad, worker_team& team) {
  if (experts.empty()) return;
  const int width = experts.front().weights->gate.n();
  const int parts = parts_of(experts.size(), width, team.size());
  if (parts > 1) return run_in_ranges(math, experts, parts, load, bad, team);
  team.parallel("experts", static_cast<int>(experts.size()), [&](int i, worker_memory& memory) {
    const auto& expert = experts[static_cast<size_t>(i)];
    const auto& [gate, up, down] = *expert.weights;
    const size_t input_bytes = whole_lines(math.input_bytes(expert.rows, gate.k()));
    std::byte* input = memory.kernel.take(input_bytes + math.input_bytes(expert.rows, width));
    std::byte* hidden = input + input_bytes;
    for (int row = 0; row < expert.rows; ++row) load(i, row, gate.k(), input, memory);
    math.gated_matmul(gate, up, {input, expert.rows, gate.k()}, hidden, 0, width);
    if (!math.matmul_apart(down, {hidden, expert.rows, width}, expert.kind, expert.outputs, 0, down.n()))
      bad(i, 0, down.n());
  });
}

void expert_products::run_in_ranges(const kernels::compute& math, std::span<const expert_batch> experts, int parts,
                                    load_row load, found_bad bad, worker_team& team) {
  const int hidden = experts.front().weights->gate.k(), width = experts.front().weights->gate.n();
  places_.clear();
  size_t input_bytes = 0, hidden_bytes = 0;
  int rows = 0;
  for (const auto& expert : experts) {
    places_.push_back({input_bytes, hidden_bytes});
    input_bytes += whole_lines(math.input_bytes(expert.rows, hidden));
    hidden_bytes += whole_lines(math.input_bytes(expert.rows, width));
    rows += expert.rows;
  }
  std::byte* inputs = input_space_.take(input_bytes);
  std::byte* hiddens = hidden_space_.take(hidden_bytes);
  const auto input_of = [&](int i) { return inputs + places_[static_cast<size_t>(i)].input_at; };
  const auto hidden_of = [&](int i) { return hiddens + places_[static_cast<size_t>(i)].hidden_at; };
  const auto make_inputs = [&](int i, worker_memory& memory) {
    for (int row = 0; row < experts[static_cast<size_t>(i)].rows; ++row) load(i, row, hidden, input_of(i), memory);
  };
  // A few rows are copied sooner than a helper wakes.
  constexpr int few_rows = 32;
  if (rows <= few_rows)
    team.alone("expert inputs", static_cast<int>(experts.size()), make_inputs);
  else
    team.parallel("expert inputs", static_cast<int>(experts.size()), make_inputs);
  for_column_ranges("expert gate, up", experts.size(), width, parts, team, [&](int i, int begin, int end) {
    const auto& expert = experts[static_cast<size_t>(i)];
    math.gated_matmul(expert.weights->gate, expert.weights->up, {input_of(i), expert.rows, hidden}, hidden_of(i), begin,
                      end);
  });
  for_column_ranges("expert down", experts.size(), hidden, parts, team, [&](int i, int begin, int end) {
    const auto& expert = experts[static_cast<size_t>(i)];
    if (!math.matmul_apart(expert.weights->down, {hidden_of(i), expert.rows, width}, expert.kind, expert.outputs, begin,
                           end))
      bad(i, begin, end);
  });
}

}  // namespace troupe
