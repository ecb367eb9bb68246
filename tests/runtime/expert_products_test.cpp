#include "runtime/device/expert_products.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <random>

namespace troupe {
namespace {

constexpr int hidden = 64, width = 256;

kernels::packed_matrix random_matrix(const kernels::compute& math, int n, int k, std::mt19937_64& draw) {
  std::vector<float> values(static_cast<size_t>(n) * static_cast<size_t>(k));
  for (auto& value : values) value = static_cast<float>(static_cast<int>(draw() % 256) - 128) / 512.0F;
  return math.pack({.dtype = kernels::weight_dtype::f32, .data = values.data(), .n = n, .k = k},
                   math.preferred_format());
}

struct fixture {
  std::unique_ptr<kernels::compute> math = kernels::compute::make(kernels::profile::f32);
  std::mt19937_64 draw{11};
  std::vector<expert_weights> weights;
  std::vector<std::vector<float>> inputs;  // of each expert, [rows, hidden]

  explicit fixture(int experts) {
    for (int e = 0; e < experts; ++e) {
      auto& one = weights.emplace_back();
      one.gate = random_matrix(*math, width, hidden, draw);
      one.up = random_matrix(*math, width, hidden, draw);
      one.down = random_matrix(*math, hidden, width, draw);
      auto& rows = inputs.emplace_back(static_cast<size_t>((1 + e % 5) * hidden));
      for (auto& value : rows) value = static_cast<float>(static_cast<int>(draw() % 256) - 128) / 64.0F;
    }
  }
  int rows_of(int expert) const { return static_cast<int>(inputs[static_cast<size_t>(expert)].size()) / hidden; }

  struct outcome {
    std::vector<float> outputs;
    std::vector<int> bad;  // columns of each expert that hold NaN or infinity
  };
  outcome run(int threads) {
    worker_team team(threads);
    outcome out;
    size_t all_rows = 0;
    for (const auto& rows : inputs) all_rows += rows.size() / hidden;
    out.outputs.resize(all_rows * hidden);
    std::vector<std::byte*> places;
    for (size_t row = 0; row < all_rows; ++row)
      places.push_back(reinterpret_cast<std::byte*>(out.outputs.data() + row * hidden));
    std::vector<expert_batch> batches;
    size_t first = 0;
    for (size_t e = 0; e < weights.size(); ++e) {
      const int rows = rows_of(static_cast<int>(e));
      batches.push_back({&weights[e], rows, places.data() + first, kernels::element::f32});
      first += static_cast<size_t>(rows);
    }
    std::vector<std::atomic<int>> bad(weights.size());
    expert_products products;
    products.run(
        *math, batches,
        [&](int expert, int row, int k, std::byte* input, worker_memory&) {
          math->input_row(inputs[static_cast<size_t>(expert)].data() + row * k, row, k, input);
        },
        [&](int expert, int begin, int end) { bad[static_cast<size_t>(expert)] += end - begin; }, team);
    for (const auto& columns : bad) out.bad.push_back(columns);
    return out;
  }
};

}  // namespace

TEST_CASE("few experts cut into ranges of columns give the bits of whole ones") {
  for (const int experts : {1, 2, 3, 7}) {
    CAPTURE(experts);
    fixture with(experts);
    CHECK(expert_products::computes_whole(static_cast<size_t>(experts), width, 1));
    CHECK_FALSE(expert_products::computes_whole(static_cast<size_t>(experts), width, 2));
    const auto whole = with.run(1);
    CHECK(whole.outputs == with.run(2).outputs);
    CHECK(whole.outputs == with.run(3).outputs);
  }
}

TEST_CASE("many experts are computed whole by several threads, with the bits of one thread") {
  fixture with(70);
  CHECK(expert_products::computes_whole(70, width, 2));
  CHECK(with.run(1).outputs == with.run(2).outputs);
}

TEST_CASE("an expert whose outputs are not finite is told, whole or in ranges") {
  fixture with(3);
  with.inputs[1][5] = std::numeric_limits<float>::infinity();
  for (const int threads : {1, 2}) {
    CAPTURE(threads);
    const auto bad = with.run(threads).bad;
    CHECK(bad[0] == 0);
    CHECK(bad[1] == hidden);
    CHECK(bad[2] == 0);
  }
}

}  // namespace troupe
