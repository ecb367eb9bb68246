// Rotary embedding against the numbers of MODEL.md 7.1, 7.2 and 17.7.
#include <array>

#include "tests/kernels/fixtures.hpp"

using namespace troupe::testing;

namespace {

rope_parameters v3() {
  rope_parameters p;
  p.dim = 64;
  p.factor = 40;
  p.mscale_all_dim = 1;
  return p;
}

}  // namespace

TEST_CASE("inverse frequencies of V3 are the published ones") {
  const auto w = inverse_frequencies(v3());
  REQUIRE(w.size() == 32);
  const std::array<double, 32> expected = {
      1.000000000e+00, 7.498942093e-01, 5.623413252e-01, 4.216965034e-01, 3.162277660e-01, 2.371373706e-01,
      1.778279410e-01, 1.333521432e-01, 1.000000000e-01, 7.498942093e-02, 5.623413252e-02, 3.900692657e-02,
      2.687936011e-02, 1.837814622e-02, 1.244795587e-02, 8.334508951e-03, 5.500000000e-03, 3.561997494e-03,
      2.249365301e-03, 1.370513636e-03, 7.905694150e-04, 4.149903985e-04, 1.778279410e-04, 3.333803580e-05,
      2.500000000e-05, 1.874735523e-05, 1.405853313e-05, 1.054241259e-05, 7.905694150e-06, 5.928434264e-06,
      4.445698525e-06, 3.333803580e-06};
  for (size_t i = 0; i < 32; ++i) {
    CHECK(w[i] == doctest::Approx(expected[i]).epsilon(1e-6));
  }
}

TEST_CASE("inverse frequencies of the tiny V3 and of plain rotary embedding") {
  rope_parameters tiny = v3();
  tiny.dim = 8;
  const auto w = inverse_frequencies(tiny);
  const std::array expected = {1.0, 0.1, 0.005125, 2.5e-05};
  for (size_t i = 0; i < 4; ++i) CHECK(w[i] == doctest::Approx(expected[i]).epsilon(1e-6));
  rope_parameters plain;
  plain.dim = 8;
  const auto f = inverse_frequencies(plain);
  const std::array unscaled = {1.0, 0.1, 0.01, 0.001};
  for (size_t i = 0; i < 4; ++i) CHECK(f[i] == doctest::Approx(unscaled[i]).epsilon(1e-6));
}

TEST_CASE("softmax scales and the cos/sin multiplier are the published ones") {
  CHECK(softmax_scale(v3(), 192) == doctest::Approx(0.1352337788608801).epsilon(1e-12));
  CHECK(rope_cos_sin_scale(v3()) == 1);
  rope_parameters lite = v3();
  lite.mscale = lite.mscale_all_dim = 0.707;
  CHECK(softmax_scale(lite, 192) == doctest::Approx(0.11472138679292612).epsilon(1e-12));
  CHECK(rope_cos_sin_scale(lite) == 1);
  CHECK(softmax_scale(v3(), 16) == doctest::Approx(0.46846355177315663).epsilon(1e-12));
  CHECK(softmax_scale(lite, 16) == doctest::Approx(0.3974065412802184).epsilon(1e-12));
  CHECK(softmax_scale(rope_parameters{}, 192) == doctest::Approx(0.07216878364870323).epsilon(1e-12));
  rope_parameters no_all_dim = v3();
  no_all_dim.mscale_all_dim = 0;
  CHECK(softmax_scale(no_all_dim, 192) == doctest::Approx(0.07216878364870323).epsilon(1e-12));
  CHECK(rope_cos_sin_scale(no_all_dim) == doctest::Approx(1.3688879454113936).epsilon(1e-12));
}

TEST_CASE("cosines and sines of positions are the published ones") {
  const auto w = inverse_frequencies(v3());
  struct expected {
    int64_t position;
    size_t pair;
    double cosine, sine;
  };
  const std::array published = {expected{1, 0, 0.5403023, 0.8414710},       expected{1, 10, 0.9984193, 0.0562045},
                                expected{1, 16, 0.9999849, 0.0055000},      expected{4096, 0, 0.8039906, -0.5946420},
                                expected{4096, 10, -0.5413595, -0.8407912}, expected{4096, 16, -0.8593232, -0.5114329},
                                expected{4096, 31, 0.9999068, 0.0136548},   expected{100000, 0, -0.9993608, 0.0357488},
                                expected{100000, 31, 0.9449416, 0.3272391}};
  std::vector<float> cosines(32), sines(32);
  for (const expected& e : published) {
    CAPTURE(e.position);
    CAPTURE(e.pair);
    rope_table(w, e.position, 1, cosines.data(), sines.data());
    // The frequencies are FP32, as HF keeps them; the published numbers used double. That is the tolerance.
    const double tolerance = 1e-7 + 6e-8 * static_cast<double>(e.position) * static_cast<double>(w[e.pair]);
    CHECK(std::abs(static_cast<double>(cosines[e.pair]) - e.cosine) < tolerance);
    CHECK(std::abs(static_cast<double>(sines[e.pair]) - e.sine) < tolerance);
  }
}

TEST_CASE("tables are accurate at positions up to a million") {
  const auto w = inverse_frequencies(v3());
  std::vector<float> cosines(32), sines(32);
  for (int64_t position = 0; position <= 1000000; position += 99991) {
    rope_table(w, position, 2, cosines.data(), sines.data());
    for (size_t i = 0; i < 32; ++i) {
      const double angle = static_cast<double>(position) * static_cast<double>(w[i]);
      CHECK(std::abs(static_cast<double>(cosines[i]) - 2 * std::cos(angle)) < 2e-7);
      CHECK(std::abs(static_cast<double>(sines[i]) - 2 * std::sin(angle)) < 2e-7);
    }
  }
}

TEST_CASE("rotation leaves pairs interleaved") {
  const auto w = inverse_frequencies(v3());
  std::vector<float> cosines(32), sines(32), x(64);
  for (size_t j = 0; j < 64; ++j) x[j] = static_cast<float>(j + 1) / 64;
  rope_table(w, 5, 1, cosines.data(), sines.data());
  rope_rotate(x.data(), cosines.data(), sines.data(), 64);
  const std::array start = {0.034399, -0.006119, -0.002782, -0.078075, -0.104281, -0.063387};
  for (size_t i = 0; i < start.size(); ++i) CHECK(std::abs(static_cast<double>(x[i]) - start[i]) < 1e-6);
  const std::array middle = {0.463124, 0.519745, 0.500823, 0.545227};
  for (size_t i = 0; i < middle.size(); ++i) CHECK(std::abs(static_cast<double>(x[30 + i]) - middle[i]) < 1e-6);
  CHECK(std::abs(x[62] - 0.984358F) < 1e-6F);
  CHECK(std::abs(x[63] - 1.000016F) < 1e-6F);
}
