// The products of one layer's routed experts on one device: gate, up, SwiGLU and down for each expert's rows.
#pragma once

#include <span>
#include <vector>

#include "kernels/compute.hpp"
#include "runtime/device/worker_team.hpp"
#include "runtime/model/weights.hpp"

namespace troupe {

// One expert's rows. Requires: rows > 0; all experts of a call have one shape.
struct expert_batch {
  const expert_weights* weights = nullptr;
  int rows = 0;
  std::byte* const* outputs = nullptr;  // [rows], each [hidden] of `kind`
  kernels::element kind = kernels::element::bf16;
};

// Working memory is kept between calls, so that a steady state allocates nothing.
class expert_products {
 public:
  // Makes row `row` of expert `expert` (its place in the call) a product's input of k values. Thread: any of the team;
  // it may use `workspace` alone.
  using load_row = function_ref<void(int expert, int row, int k, std::byte* input, worker_memory&)>;
  // Columns [begin, end) of an expert's outputs hold NaN or infinity. Thread: any of the team.
  using found_bad = function_ref<void(int expert, int begin, int end)>;

  // Reads each expert's weights once. With many experts a member of the team computes whole ones, rows and results in
  // its own caches; few are cut into ranges of columns. That shows in no bit.
  void run(const kernels::compute& math, std::span<const expert_batch> experts, load_row load, found_bad bad,
           worker_team& team);

  // Whether a call with so many experts, `width` wide, lets members of a team of `threads` compute whole ones.
  static bool computes_whole(size_t experts, int width, int threads);

 private:
  struct place {
    size_t input_at = 0;  // in inputs_, in bytes
    size_t hidden_at = 0;
  };
  void run_in_ranges(const kernels::compute& math, std::span<const expert_batch> experts, int parts, load_row load,
                     found_bad bad, worker_team& team);

  std::vector<place> places_;
  kernels::scratch input_space_, hidden_space_;
};

}  // namespace troupe
