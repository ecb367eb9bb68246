// Where the time of a step goes: each operator beside what it reads and computes, and beside the machine's limits,
// which the same program measures between the steps.
#pragma once

#include <string>
#include <vector>

#include "apps/bench/plain_loop.hpp"

namespace troupe {

struct operator_figures {
  std::string name;
  double calls = 0;      // a step
  double seconds = 0;    // a step, from its beginning to the next operator's
  double bytes = 0;      // read a step: weights and cached latents
  double flops = 0;      // a step
  double reading_s = 0;  // in which a plain reader reads the same bytes in the same order, with as many threads
};

struct operator_report {
  std::vector<operator_figures> operators;  // in the order of a step
  double peak_flops = 0;                    // a second, of all threads, operands in registers
  double step_s = 0;
};

// What work is timed: a prompt's last rows (at most 512) in one micro-batch, or decode steps.
struct operator_shape {
  int prompt = 0;   // tokens; 0: decode
  int batch = 1;    // sequences that decode
  int context = 0;  // positions before the first decoded token
  int steps = 24;   // steps that are timed, and as many passes of the reader
};

operator_report measure_operators(plain_loop& loop, const operator_shape& shape);

// Lines that line up, the last for the whole step. `limit`: the longer of reading and computing at the peak, over the
// operator's time.
std::string to_table(const operator_report& report);

}  // namespace troupe
