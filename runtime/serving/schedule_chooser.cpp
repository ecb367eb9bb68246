#include "runtime/serving/schedule_chooser.hpp"

#include <bit>
#include <cstdio>

namespace troupe {

namespace {

constexpr uint32_t prompt_flag = 64;  // of a size class: mostly prompts
// Steps of each micro-batch after a change that are not measured: the batch must be cut anew first.
constexpr uint32_t settling_steps = 2;

}  // namespace

uint32_t schedule_chooser::size_class(uint32_t decoding_rows, uint32_t prompt_rows) {
  const uint32_t rows = decoding_rows + prompt_rows;
  return static_cast<uint32_t>(std::bit_width(rows)) + (prompt_rows > decoding_rows ? prompt_flag : 0);
}

bool schedule_chooser::step_ended(uint32_t step_rows, uint32_t decoding_rows, uint32_t prompt_rows, uint64_t now_ns) {
  if (schedule_.choices.size() == 1 || decoding_rows + prompt_rows == 0) return false;
  const size_t before = current_;
  const uint32_t size = size_class(decoding_rows, prompt_rows);
  if (size != size_) {
    // A batch that only brushes another size on its way keeps what it has.
    if (size_ != 0 && ++strays_ < 2 * current().micro_batches) return false;
    enter(size);
    return current_ != before;
  }
  strays_ = 0;
  if (settling_ > 0) {
    if (--settling_ == 0) {
      begin_ns_ = now_ns;
      rows_ = 0;
    }
    return false;
  }
  if (!probing_) {
    if (++by_size_[size_].steps >= uint64_t{schedule_.reprobe_steps} * current().micro_batches) {
      by_size_[size_].settled = false;
      enter(size_);
    }
    return current_ != before;
  }
  rows_ += step_rows;
  if (--steps_left_ == 0)
    finish_probe(static_cast<double>(rows_) * 1000.0 /
                 static_cast<double>(now_ns > begin_ns_ ? now_ns - begin_ns_ : 1));
  return current_ != before;
}

void schedule_chooser::enter(uint32_t size) {
  size_ = size;
  strays_ = 0;
  auto& here = by_size_[size];
  here.rows_per_us.resize(schedule_.choices.size());
  if (here.settled) {
    probing_ = false;
    use(here.best);
    return;
  }
  if (here.steps == 0) here.best = current_;  // what a neighbouring size found is the first to beat
  measure(0);
}

// One row cannot be cut, and so on: choices with more micro-batches than the size's rows are left out.
bool schedule_chooser::possible(size_t choice) const {
  return schedule_.choices[choice].micro_batches <= (1U << (size_ % prompt_flag)) - 1;
}

void schedule_chooser::measure(size_t choice) {
  while (choice < schedule_.choices.size() && !possible(choice)) ++choice;
  if (choice == schedule_.choices.size()) {
    probing_ = false;
    return;
  }
  probing_ = true;
  use(choice);
  settling_ = settling_steps * current().micro_batches;
  steps_left_ = schedule_.probe_steps * current().micro_batches;
}

void schedule_chooser::finish_probe(double rows_per_us) {
  auto& here = by_size_[size_];
  here.rows_per_us[current_] = rows_per_us;
  measure(current_ + 1);
  if (probing_) return;
  const auto& rates = here.rows_per_us;
  const double enough = 1.0 + schedule_.hysteresis_percent / 100.0;
  if (!possible(here.best)) here.best = 0;
  size_t fastest = 0;
  for (size_t i = 0; i < rates.size(); ++i)
    if (rates[i] > rates[fastest]) fastest = i;
  if (rates[fastest] > rates[here.best] * enough) here.best = fastest;
  here.settled = true;
  here.steps = 1;
  use(here.best);
}

void schedule_chooser::use(size_t choice) {
  if (choice != current_) ++switches_;
  current_ = choice;
}

std::string schedule_chooser::reason() const {
  const auto describe = [](const schedule_choice& choice) {
    return std::to_string(choice.micro_batches) + (choice.split_attention ? " split" : " whole");
  };
  std::string text = describe(current());
  if (schedule_.choices.size() == 1) return text + " (the schedule's only choice)";
  const auto at = by_size_.find(size_);
  if (at == by_size_.end()) return text + " (nothing measured yet)";
  const uint32_t bits = size_ % prompt_flag;
  text += " (batch " + std::to_string(1U << (bits - 1)) + " to " + std::to_string((1U << bits) - 1) +
          (size_ >= prompt_flag ? ", prompts" : ", decoding");
  if (probing_) return text + ", being measured)";
  text += "; rows/ms:";
  for (size_t i = 0; i < schedule_.choices.size(); ++i) {
    const double rate = at->second.rows_per_us[i];
    char figure[32];
    std::snprintf(figure, sizeof figure, rate > 0 ? " %.4g" : " -", rate * 1000);
    text += " " + describe(schedule_.choices[i]) + figure + (i + 1 < schedule_.choices.size() ? "," : "");
  }
  return text + ")";
}

}  // namespace troupe
