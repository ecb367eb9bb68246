#include "apps/bench/operators.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iterator>

namespace troupe {

namespace {

using bench_clock = std::chrono::steady_clock;

double seconds_between(bench_clock::time_point begin, bench_clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

// Adds up the time of each section.
class section_clock : public section_listener {
 public:
  void begins(const char* name) override {
    const auto now = bench_clock::now();
    end_last(now);
    current_ = find(name);
    began_ = now;
    times_[current_].calls += 1;
  }
  void stop() { end_last(bench_clock::now()); }

  struct section_time {
    const char* name;
    double seconds = 0;
    double calls = 0;
  };
  const std::vector<section_time>& times() const { return times_; }  // in the order of first calls

 private:
  static constexpr size_t none = SIZE_MAX;

  void end_last(bench_clock::time_point now) {
    if (current_ != none) times_[current_].seconds += seconds_between(began_, now);
    current_ = none;
  }
  size_t find(const char* name) {
    for (size_t i = 0; i < times_.size(); ++i)
      if (std::strcmp(times_[i].name, name) == 0) return i;
    times_.push_back({name});
    return times_.size() - 1;
  }

  std::vector<section_time> times_;
  size_t current_ = none;
  bench_clock::time_point began_;
};

// A plain reader of a step's bytes, shared out over the team in pieces.
class plain_reader {
 public:
  explicit plain_reader(const std::vector<section_work>& works) {
    constexpr size_t piece = size_t{128} << 10;
    for (const auto& work : works) {
      auto& pieces = sections_.emplace_back(work.section, std::vector<std::span<const std::byte>>{}).second;
      for (const auto& read : work.reads)
        for (size_t at = 0; at < read.size(); at += piece)
          pieces.push_back(read.subspan(at, std::min(piece, read.size() - at)));
    }
  }

  void read(const kernels::compute& math, worker_team& team) {
    for (const auto& [section, pieces] : sections_)
      team.parallel(section, static_cast<int>(pieces.size()), [&, &pieces = pieces](int i, worker_memory&) {
        sum_.fetch_add(math.read_through(pieces[static_cast<size_t>(i)]), std::memory_order_relaxed);
      });
  }

 private:
  std::vector<std::pair<const char*, std::vector<std::span<const std::byte>>>> sections_;
  std::atomic<uint32_t> sum_{0};
};

// Operations a second of all threads on registers.
double measure_peak(plain_loop& loop) {
  constexpr int rounds = 200000, items_a_thread = 4;
  const int items = loop.team().size() * items_a_thread;
  std::atomic<double> flops{0};
  double best = 0;
  for (int run = 0; run < 3; ++run) {
    flops = 0;
    const auto begin = bench_clock::now();
    loop.team().parallel("peak", items, [&](int, worker_memory&) { flops.fetch_add(loop.math().peak_work(rounds)); });
    best = std::max(best, flops.load() / seconds_between(begin, bench_clock::now()));
  }
  return best;
}

}  // namespace

operator_report measure_operators(plain_loop& loop, const operator_shape& shape) {
  operator_report report;
  report.peak_flops = measure_peak(loop);
  section_clock computing, reading;
  if (shape.prompt > 0)
    loop.start_prompt(shape.prompt);
  else
    loop.start_decoding(shape.batch, shape.context, shape.steps + 1);
  const auto compute = [&] { shape.prompt > 0 ? loop.finish_prompt() : loop.decode_step(); };
  compute();  // memory that grows with use is there afterwards
  std::vector<section_work> works;
  for (int i = 0; i < shape.steps; ++i) {
    loop.team().listen(&computing);
    compute();
    computing.stop();
    auto step = loop.last_step();
    plain_reader reader(step);
    loop.team().listen(&reading);
    reader.read(loop.math(), loop.team());
    reading.stop();
    loop.team().listen(nullptr);
    std::move(step.begin(), step.end(), std::back_inserter(works));
  }
  for (const auto& time : computing.times()) {
    operator_figures figures{time.name, time.calls / shape.steps, time.seconds / shape.steps, 0, 0, 0};
    for (const auto& work : works) {
      if (figures.name != work.section) continue;
      for (const auto& read : work.reads) figures.bytes += static_cast<double>(read.size()) / shape.steps;
      figures.flops += work.flops / shape.steps;
    }
    for (const auto& read : reading.times())
      if (figures.name == read.name) figures.reading_s = read.seconds / shape.steps;
    report.step_s += figures.seconds;
    report.operators.push_back(std::move(figures));
  }
  return report;
}

std::string to_table(const operator_report& report) {
  std::string table;
  const auto add = [&](const char* format, const auto&... values) {
    std::array<char, 200> line;
    std::snprintf(line.data(), line.size(), format, values...);
    table += line.data();
  };
  add("%-20s %7s %9s %6s %9s %9s %8s %9s %7s\n", "operator", "calls", "ms/step", "share", "MB", "GFLOP", "GB/s",
      "GFLOP/s", "limit");
  operator_figures whole{"step", 0, 0, 0, 0, 0};
  double whole_least_s = 0;
  const auto line = [&](const operator_figures& one, double least_s) {
    add("%-20s %7.0f %9.3f %5.1f%% %9.2f %9.3f", one.name.c_str(), one.calls, one.seconds * 1e3,
        100 * one.seconds / report.step_s, one.bytes / 1e6, one.flops / 1e9);
    if (one.bytes > 0)
      add(" %8.1f %9.0f %6.0f%%\n", one.bytes / one.seconds / 1e9, one.flops / one.seconds / 1e9,
          100 * least_s / one.seconds);
    else
      add(" %8s %9s %7s\n", "-", "-", "-");
  };
  for (const auto& one : report.operators) {
    const double least_s = std::max(one.reading_s, one.flops / report.peak_flops);
    line(one, least_s);
    whole.calls += one.calls;
    whole.seconds += one.seconds;
    whole.bytes += one.bytes;
    whole.flops += one.flops;
    whole.reading_s += one.reading_s;
    whole_least_s += least_s;
  }
  line(whole, whole_least_s);
  add("limits: a plain reader of the same bytes, %.1f GB/s; registers, %.0f GFLOP/s\n",
      whole.reading_s > 0 ? whole.bytes / whole.reading_s / 1e9 : 0, report.peak_flops / 1e9);
  return table;
}

}  // namespace troupe
