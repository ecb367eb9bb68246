// Norms, activations, reductions: right, and the same bits from every instruction set.
#include <array>
#include <limits>

#include "kernels/cpu/lanes.hpp"
#include "tests/kernels/fixtures.hpp"

using namespace troupe::testing;

namespace {

constexpr std::array widths = {1, 2, 8, 15, 16, 17, 24, 31, 33, 130, 576, 1000, 1024};

// Runs every row-wise kernel on one width and returns all results in one array.
std::vector<float> all_rows(const compute& math, int width) {
  const auto count = static_cast<size_t>(width);
  const auto x = values("rows.a", count, 8), w = values("rows.b", count);
  std::vector<float> out(count), all;
  const auto keep = [&] { all.insert(all.end(), out.begin(), out.end()); };
  scratch memory;
  math.rms_norm(x.data(), w.data(), out.data(), width, 1e-6F);
  keep();
  math.silu_mul(x.data(), w.data(), out.data(), width);
  keep();
  math.sigmoid(x.data(), out.data(), width);
  keep();
  out = w;
  math.axpy(0.3F, x.data(), out.data(), width);
  keep();
  const auto narrow = bf16_values("rows.c", 3 * count);
  const std::byte* wide_rows[] = {reinterpret_cast<const std::byte*>(x.data()),
                                  reinterpret_cast<const std::byte*>(w.data())};
  const std::byte* narrow_rows[] = {reinterpret_cast<const std::byte*>(narrow.data()),
                                    reinterpret_cast<const std::byte*>(narrow.data() + count)};
  const routed_expert experts[] = {{3, 0.7F}, {1, 0.2F}};
  for (const bool bf16 : {false, true}) {
    math.combine_row(bf16 ? narrow_rows : wide_rows, bf16 ? element::bf16 : element::f32, experts, 2, x.data(),
                     out.data(), width);
    keep();
  }
  all.push_back(math.log_sum_exp(x.data(), width, memory));
  all.push_back(static_cast<float>(math.argmax(x.data(), width)));
  return all;
}

}  // namespace

TEST_CASE("all instruction sets give the same bits for every row-wise kernel") {
  const auto all = f32_implementations();
  for (const int width : widths) {
    const auto reference = all_rows(*all[0], width);
    for (const auto& math : all) {
      CAPTURE(math->description());
      CAPTURE(width);
      CHECK(same_bits(reference, all_rows(*math, width)));
    }
  }
}

TEST_CASE("a combine is one chain of multiply-adds, then the shared expert, then the residual") {
  const auto math = compute::make(profile::f32);
  for (const int width : widths) {
    const auto count = static_cast<size_t>(width);
    const auto first = values("rows.a", count, 8), second = values("rows.b", count), shared = values("rows.s", count);
    const std::byte* rows[] = {reinterpret_cast<const std::byte*>(first.data()),
                               reinterpret_cast<const std::byte*>(second.data())};
    const routed_expert experts[] = {{3, 0.7F}, {1, 0.2F}};
    auto x = values("rows.x", count);
    std::vector<float> sum(count);
    math->axpy(0.7F, first.data(), sum.data(), width);
    math->axpy(0.2F, second.data(), sum.data(), width);
    math->axpy(1, shared.data(), sum.data(), width);
    auto expected = x;
    math->axpy(1, sum.data(), expected.data(), width);
    math->combine_row(rows, element::f32, experts, 2, shared.data(), x.data(), width);
    CHECK(same_bits(x, expected));
  }
}

TEST_CASE("every instruction set rounds to BF16 as the scalar definition, odd values too") {
  std::vector<float> x = values("bf16.rows", 200, 1e4F);
  for (const float odd : {0.0F, -0.0F, 1e-40F, 3.4e38F, std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()})
    x.push_back(odd);
  for (const isa set : {isa::scalar, isa::avx2, isa::avx512}) {
    if ((set == isa::avx2 && !cpu_features::detect().avx2) || (set == isa::avx512 && !cpu_features::detect().avx512))
      continue;
    for (int count = 1; count <= static_cast<int>(x.size()); count += 13) {
      std::vector<uint16_t> out(x.size(), 7);
      lanes_of(set).bf16_round_row(x.data() + x.size() - sized(count), out.data(), count);
      for (int i = 0; i < count; ++i) REQUIRE(out[sized(i)] == bf16_round(x[x.size() - sized(count) + sized(i)]));
      if (sized(count) < out.size()) CHECK(out[sized(count)] == 7);
      std::vector<float> back(x.size());
      lanes_of(set).bf16_widen_row(out.data(), back.data(), count);
      for (int i = 0; i < count; ++i) {
        const float expected = bf16_widen(out[sized(i)]);
        REQUIRE(std::memcmp(&back[sized(i)], &expected, 4) == 0);
      }
    }
  }
}

TEST_CASE("profile amx_bf16 computes rows as profile f32 does") {
  const auto profiles = all_profiles();
  for (const int width : widths)
    CHECK(same_bits(all_rows(*profiles.front(), width), all_rows(*profiles.back(), width)));
}

TEST_CASE("row-wise kernels agree with double precision") {
  const auto math = compute::make(profile::f32);
  for (const int width : widths) {
    const auto count = static_cast<size_t>(width);
    const auto x = values("rows.a", count, 8), w = values("rows.b", count);
    double squares = 0, sum_exp = 0;
    for (const float v : x) squares += static_cast<double>(v) * static_cast<double>(v);
    for (const float v : x) sum_exp += std::exp(static_cast<double>(v));
    const double inverse = 1 / std::sqrt(squares / width + 1e-6);
    std::vector<float> norm(count), silu(count), logistic(count), sum(w);
    math->rms_norm(x.data(), w.data(), norm.data(), width, 1e-6F);
    math->silu_mul(x.data(), w.data(), silu.data(), width);
    math->sigmoid(x.data(), logistic.data(), width);
    math->axpy(0.25F, x.data(), sum.data(), width);
    for (size_t i = 0; i < count; ++i) {
      const double a = static_cast<double>(x[i]), b = static_cast<double>(w[i]);
      CHECK(norm[i] == doctest::Approx(a * inverse * b).epsilon(1e-6));
      CHECK(silu[i] == doctest::Approx(a / (1 + std::exp(-a)) * b).epsilon(1e-6));
      CHECK(logistic[i] == doctest::Approx(1 / (1 + std::exp(-a))).epsilon(1e-6));
      CHECK(sum[i] == doctest::Approx(0.25 * a + b).epsilon(1e-6));
    }
    scratch memory;
    CHECK(math->log_sum_exp(x.data(), width, memory) == doctest::Approx(std::log(sum_exp)).epsilon(1e-6));
  }
}

TEST_CASE("a norm may write over its input") {
  for (const auto& math : f32_implementations()) {
    auto x = values("inplace", 37);
    const auto w = values("inplace.w", 37);
    std::vector<float> out(37);
    math->rms_norm(x.data(), w.data(), out.data(), 37, 1e-6F);
    math->rms_norm(x.data(), w.data(), x.data(), 37, 1e-6F);
    CHECK(same_bits(x, out));
  }
}

TEST_CASE("argmax takes the lowest index of equals and passes over NaN") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const auto& math : f32_implementations()) {
    std::vector<float> x(100, -1);
    x[77] = x[41] = x[90] = 5;
    CHECK(math->argmax(x.data(), 100) == 41);
    x[3] = nan;
    CHECK(math->argmax(x.data(), 100) == 41);
    x[99] = infinity;
    CHECK(math->argmax(x.data(), 100) == 99);
    const std::vector<float> masked(40, -infinity);
    CHECK(math->argmax(masked.data(), 40) == 0);
    scratch memory;
    CHECK(math->log_sum_exp(masked.data(), 40, memory) == -infinity);
  }
}

TEST_CASE("log_sum_exp over a vocabulary is exact to FP32 rounding") {
  const auto math = compute::make(profile::f32);
  const int count = 129280;
  const auto logits = values("vocabulary", count, 20);
  double sum = 0;
  for (const float v : logits) sum += std::exp(static_cast<double>(v));
  scratch memory;
  CHECK(std::abs(static_cast<double>(math->log_sum_exp(logits.data(), count, memory)) - std::log(sum)) < 3e-6);
}
