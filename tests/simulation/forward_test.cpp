// The whole model against the values of MODEL.md 17.2, through the forward pass alone.
#include <doctest/doctest.h>

#include <cmath>

#include "tests/simulation/plain_forward.hpp"
#include "tests/small_model.hpp"

namespace troupe {
namespace {

using testing::plain_forward;

int argmax(const float* logits, int count) {
  int best = 0;
  for (int i = 1; i < count; ++i)
    if (logits[i] > logits[best]) best = i;
  return best;
}

const std::vector<int32_t> t1_ids{3, 17, 42, 5, 60, 8, 29, 11};
constexpr double t1_first[8] = {-2.80035757, 1.64591521,  4.73196190,  -3.44017388,
                                0.87141558,  -0.79783374, -4.59811285, -1.23629106};
constexpr double t1_last[8] = {-1.35832258, -0.37031827, 3.16481509,  -0.37176301,
                               -1.99080516, -5.80996015, -1.31010631, -4.28873865};

}  // namespace

TEST_CASE("T1 logits, argmax and greedy continuation equal the published code's in profile f32") {
  testing::temporary_directory directory;
  testing::write_t1_model(directory.path());
  plain_forward model(directory.path(), kernels::compute::make(kernels::profile::f32));
  const auto logits = model.run(t1_ids, 0);
  double sum = 0, sum_abs = 0;
  for (const float z : logits) {
    sum += z;
    sum_abs += std::abs(z);
  }
  for (int i = 0; i < 8; ++i) {
    CHECK(std::abs(logits[static_cast<size_t>(i)] - t1_first[i]) <= 5e-5);
    CHECK(std::abs(logits[static_cast<size_t>(7 * 64 + i)] - t1_last[i]) <= 5e-5);
  }
  CHECK(std::abs(sum - 81.6796) < 1e-2);
  CHECK(std::abs(sum_abs - 1433.366) < 1e-2);
  const int expected[8] = {55, 59, 59, 55, 23, 14, 18, 36};
  for (int i = 0; i < 8; ++i) CHECK(argmax(logits.data() + i * 64, 64) == expected[i]);

  const int greedy[8] = {36, 25, 59, 42, 51, 59, 55, 63};
  auto last = logits;
  int32_t token = argmax(last.data() + 7 * 64, 64);
  for (int i = 0; i < 8; ++i) {
    CHECK(token == greedy[i]);
    last = model.run({token}, 8 + i);
    token = argmax(last.data(), 64);
  }
}

TEST_CASE("T1 in profile amx_bf16 stays within tolerance of f32") {
  if (!kernels::cpu_features::detect().amx_bf16()) {
    MESSAGE("skipped: this CPU cannot run profile amx_bf16");
    return;
  }
  testing::temporary_directory directory;
  testing::write_t1_model(directory.path());
  plain_forward exact(directory.path(), kernels::compute::make(kernels::profile::f32));
  plain_forward rounded(directory.path(), kernels::compute::make(kernels::profile::amx_bf16));
  const auto a = exact.run(t1_ids, 0);
  const auto b = rounded.run(t1_ids, 0);
  double dot = 0, norm_a = 0, norm_b = 0, difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    dot += double{a[i]} * b[i];
    norm_a += double{a[i]} * a[i];
    norm_b += double{b[i]} * b[i];
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  }
  CHECK(std::sqrt(difference / norm_a) <= 2e-2);
  CHECK(dot / std::sqrt(norm_a * norm_b) >= 0.9995);
}

TEST_CASE("rows shared out by rows or by columns, among any number of threads, or in parts, give the same bits") {
  testing::temporary_directory directory;
  testing::write_t1_model(directory.path());
  std::vector<int32_t> tokens;
  for (int i = 0; i < 200; ++i) tokens.push_back((i * 7 + i / 9) % 64);
  for (const auto profile : {kernels::profile::f32, kernels::profile::amx_bf16}) {
    if (profile == kernels::profile::amx_bf16 && !kernels::cpu_features::detect().amx_bf16()) {
      MESSAGE("skipped for amx_bf16, which this CPU cannot run");
      continue;
    }
    CAPTURE(static_cast<int>(profile));
    // In parts of 40 rows: too few for one thread to take them by rows.
    plain_forward in_parts(directory.path(), kernels::compute::make(profile));
    std::vector<float> expected;
    for (size_t first = 0; first < tokens.size(); first += 40) {
      const auto at = tokens.begin() + static_cast<ptrdiff_t>(first);
      const auto part = in_parts.run({at, at + 40}, static_cast<int>(first));
      expected.insert(expected.end(), part.begin(), part.end());
    }
    for (const int threads : {1, 2, 3, 4}) {  // four share out columns
      CAPTURE(threads);
      plain_forward whole(directory.path(), kernels::compute::make(profile), threads);
      CHECK(whole.run(tokens, 0) == expected);
    }
  }
}

}  // namespace troupe
