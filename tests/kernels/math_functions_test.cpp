// exp, log, sine and cosine of our own.
#include "kernels/math_functions.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/cpu/lanes.hpp"
#include "tests/kernels/fixtures.hpp"

using namespace troupe::testing;

TEST_CASE("exp_f32 is within 1.5 ulp over its range") {
  double worst = 0;
  for (double x = -87; x < 88.7; x += 0.00173) {
    const auto rounded = static_cast<float>(x);
    const double exact = std::exp(static_cast<double>(rounded));
    const float found = exp_f32(rounded);
    const double ulp = static_cast<double>(std::nextafter(found, std::numeric_limits<float>::infinity()) - found);
    worst = std::max(worst, std::abs(static_cast<double>(found) - exact) / ulp);
  }
  CHECK(worst < 1.5);
}

TEST_CASE("exp_f32 handles the ends") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  CHECK(exp_f32(0) == 1);
  CHECK(exp_f32(-0.0F) == 1);
  CHECK(exp_f32(100) == infinity);
  CHECK(exp_f32(infinity) == infinity);
  CHECK(exp_f32(-infinity) == 0);
  CHECK(exp_f32(-200) == 0);
  CHECK(exp_f32(-100) == doctest::Approx(3.783506e-44).epsilon(0.05));  // a denormal
  CHECK(std::isnan(exp_f32(std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("every lane's exp equals exp_f32") {
  std::vector<float> x;
  for (uint32_t bits = 0; bits < 0xff800000U; bits += 40009)
    if ((bits & 0x7fffffffU) <= 0x7f800000U) x.push_back(std::bit_cast<float>(bits));
  std::vector<float> expected(x.size()), found(x.size());
  for (size_t i = 0; i < x.size(); ++i) expected[i] = exp_f32(x[i]);
  const auto check = [&](const lane_kernels& lanes) {
    lanes.exp_scaled(x.data(), 0, 1, found.data(), static_cast<int>(x.size()));
    CHECK(same_bits(expected, found));
  };
  check(scalar_lanes());
  if (cpu_features::detect().avx2) check(avx2_lanes());
  if (cpu_features::detect().avx512) check(avx512_lanes());
}

TEST_CASE("log_f32 is within 1 ulp, denormals too") {
  double worst = 0;
  for (uint32_t bits = 1; bits < 0x7f800000U; bits += 10007) {
    const float x = std::bit_cast<float>(bits);
    const double exact = std::log(static_cast<double>(x));
    const float found = log_f32(x);
    const float size = std::abs(found);
    const double ulp = static_cast<double>(std::nextafter(size, std::numeric_limits<float>::infinity()) - size);
    worst = std::max(worst, std::abs(static_cast<double>(found) - exact) / ulp);
  }
  CHECK(worst < 1);
  CHECK(log_f32(1) == 0);
  CHECK(log_f32(0) == -std::numeric_limits<float>::infinity());
  CHECK(std::isnan(log_f32(-1)));
  CHECK(log_f32(std::numeric_limits<float>::infinity()) == std::numeric_limits<float>::infinity());
}

TEST_CASE("the double exp and log are accurate to a few ulp") {
  for (double x = -50; x < 50; x += 0.037) CHECK(exp_f64(x) == doctest::Approx(std::exp(x)).epsilon(1e-15));
  for (double x = 1e-9; x < 1e12; x *= 1.13)
    CHECK(std::abs(log_f64(x) - std::log(x)) <= 1e-15 * (1 + std::abs(std::log(x))));
}

TEST_CASE("sine and cosine are accurate for angles up to a million") {
  double worst = 0;
  const auto check = [&](double x) {
    double sine = 0, cosine = 0;
    sine_cosine(x, sine, cosine);
    worst = std::max({worst, std::abs(sine - std::sin(x)), std::abs(cosine - std::cos(x))});
  };
  for (double x = -10; x < 10; x += 0.00137) check(x);
  for (double x = 0; x < 1e6; x += 37.7123) check(x);
  for (int n = 0; n < 600000; n += 37) check(n * 1.57079632679489661923);  // where the reduction cancels most
  CHECK(worst < 1e-10);
}
