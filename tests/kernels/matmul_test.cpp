// Matrix products of every profile: right, independent of batch, blocking and instruction set.
#include <algorithm>
#include <array>

#include "tests/kernels/fixtures.hpp"

using namespace troupe::testing;

namespace {

constexpr std::array dtypes = {weight_dtype::f32, weight_dtype::bf16, weight_dtype::fp8_e4m3};

struct shape {
  int n, k;
};
constexpr std::array shapes = {shape{1, 1},     shape{16, 8},   shape{18, 24},   shape{130, 40}, shape{64, 128},
                               shape{130, 256}, shape{33, 300}, shape{200, 129}, shape{96, 160}};

// sum |x w| bounds the rounding error of any order of summation.
void check_against_double(const std::vector<float>& y, const std::vector<float>& x, const test_weight& w, int m,
                          double tolerance) {
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < w.n; ++j) {
      double sum = 0, size = 0;
      for (int k = 0; k < w.k; ++k) {
        const double term =
            static_cast<double>(x[sized(i * w.k + k)]) * static_cast<double>(w.real[sized(j * w.k + k)]);
        sum += term;
        size += std::abs(term);
      }
      const double found = y[sized(i * w.n + j)];
      REQUIRE(std::abs(found - sum) <= tolerance * size + 1e-30);
    }
}

// The relative error that a profile's rounding of the inputs allows.
double tolerance_of(const compute& math) { return math.numeric_profile() == profile::f32 ? 2e-6 : 8.5e-3; }

}  // namespace

TEST_CASE("matrix products agree with a double-precision sum over a grid of shapes") {
  for (const auto& math : all_profiles())
    for (const weight_dtype dtype : dtypes)
      for (const shape s : shapes)
        for (const int m : {1, 3, 8, 17, 40}) {
          CAPTURE(math->description());
          CAPTURE(s.n);
          CAPTURE(s.k);
          const test_weight w = make_weight("grid.W", dtype, s.n, s.k);
          const auto x = values("grid.x", sized(m * s.k));
          const packed_matrix packed = math->pack(w.view(), math->preferred_format());
          check_against_double(product(*math, packed, x, m), x, w, m, tolerance_of(*math));
        }
}

TEST_CASE("a transposed weight multiplies from the other side") {
  for (const auto& math : all_profiles())
    for (const weight_dtype dtype : dtypes) {
      const test_weight w = make_weight("transposed.W", dtype, 150, 200);
      test_weight turned = w;
      std::swap(turned.n, turned.k);
      for (int i = 0; i < w.n; ++i)
        for (int j = 0; j < w.k; ++j) turned.real[sized(j * w.n + i)] = w.real[sized(i * w.k + j)];
      const auto x = values("transposed.x", 3 * 150);
      const packed_matrix packed = math->pack_transposed(w.view(), math->preferred_format());
      CHECK(packed.n() == 200);
      CHECK(packed.k() == 150);
      check_against_double(product(*math, packed, x, 3), x, turned, 3, tolerance_of(*math));
    }
}

TEST_CASE("all instruction sets of profile f32 multiply to the same bits") {
  const auto all = f32_implementations();
  for (const weight_dtype dtype : dtypes)
    for (const shape s : shapes)
      for (const int m : {1, 2, 7, 9, 16}) {
        const test_weight w = make_weight("isa.W", dtype, s.n, s.k);
        const auto x = values("isa.x", sized(m * s.k));
        const auto reference = product(*all[0], all[0]->pack(w.view(), weight_format::f32), x, m);
        for (const auto& math : all) {
          CAPTURE(math->description());
          CHECK(same_bits(reference, product(*math, math->pack(w.view(), weight_format::f32), x, m)));
        }
      }
}

TEST_CASE("a row of a product does not depend on the other rows") {
  for (const auto& math : all_profiles())
    for (const weight_dtype dtype : dtypes)
      for (const weight_format format : {weight_format::f32, math->preferred_format()}) {
        const int n = 50, k = 200;
        const test_weight w = make_weight("rows.W", dtype, n, k);
        const packed_matrix packed = math->pack(w.view(), format);
        const auto alone_x = values("rows.alone", static_cast<size_t>(k));
        const auto alone = product(*math, packed, alone_x, 1);
        const auto strangers = values("rows.strangers", sized(97 * k), 100);
        for (int m = 2; m <= 97; m += m < 36 ? 1 : 13)
          for (int position = 0; position < m; position += m < 20 ? 1 : 7) {
            std::vector<float> x(strangers.begin(), strangers.begin() + m * k);
            std::copy(alone_x.begin(), alone_x.end(), x.begin() + position * k);
            const auto y = product(*math, packed, x, m);
            const std::vector<float> row(y.begin() + position * n, y.begin() + (position + 1) * n);
            REQUIRE(same_bits(alone, row));
          }
      }
}

TEST_CASE("rows that pass in several chunks keep their bits") {
  // So wide that the AMX product takes 64 rows at a time.
  const int n = 20, k = 16000, m = 150;
  for (const auto& math : all_profiles())
    for (const weight_dtype dtype : {weight_dtype::bf16, weight_dtype::fp8_e4m3}) {
      const test_weight w = make_weight("chunks.W", dtype, n, k);
      const packed_matrix packed = math->pack(w.view(), math->preferred_format());
      const auto x = values("chunks.x", sized(m * k));
      const auto y = product(*math, packed, x, m);
      for (const int row : {0, 63, 64, 127, 128, 149}) {
        const std::vector<float> alone(x.begin() + row * k, x.begin() + (row + 1) * k);
        const std::vector<float> found(y.begin() + row * n, y.begin() + (row + 1) * n);
        CHECK(same_bits(product(*math, packed, alone, 1), found));
      }
    }
}

TEST_CASE("column ranges add up to the whole product and touch nothing else") {
  for (const auto& math : all_profiles())
    for (const weight_dtype dtype : dtypes) {
      const int n = 130, k = 200, m = 19;
      const test_weight w = make_weight("ranges.W", dtype, n, k);
      const packed_matrix packed = math->pack(w.view(), math->preferred_format());
      const auto x = values("ranges.x", sized(m * k));
      const auto whole = product(*math, packed, x, m);
      scratch memory;
      std::vector<float> parts(sized(m * n), -7);
      for (const auto& [begin, end] : {std::pair{112, 130}, {0, 16}, {16, 64}, {64, 112}}) {
        math->matmul(packed, x.data(), k, parts.data(), n, m, begin, end, memory);
        if (begin == 112) CHECK(parts[111] == -7);
        if (begin == 0) CHECK(parts[16] == -7);
      }
      CHECK(same_bits(whole, parts));
    }
}

TEST_CASE("rows with strides and unaligned weights multiply as tight ones") {
  for (const auto& math : all_profiles()) {
    const int n = 40, k = 72, m = 5, ldx = 80, ldy = 55;
    const test_weight w = make_weight("strides.W", weight_dtype::bf16, n, k);
    std::vector<std::byte> shifted(w.data.size() + 1);
    std::copy(w.data.begin(), w.data.end(), shifted.begin() + 1);
    const packed_matrix packed =
        math->pack({weight_dtype::bf16, shifted.data() + 1, nullptr, n, k}, math->preferred_format());
    const auto tight = values("strides.x", sized(m * k));
    const auto expected = product(*math, math->pack(w.view(), math->preferred_format()), tight, m);
    std::vector<float> x(sized(m * ldx), 9), y(sized(m * ldy), -7);
    for (int i = 0; i < m; ++i) std::copy_n(tight.begin() + i * k, k, x.begin() + i * ldx);
    scratch memory;
    math->matmul(packed, x.data(), ldx, y.data(), ldy, m, 0, n, memory);
    for (int i = 0; i < m; ++i) {
      for (int j = 0; j < n; ++j) REQUIRE(y[sized(i * ldy + j)] == expected[sized(i * n + j)]);
      CHECK(y[sized(i * ldy + n)] == -7);
    }
  }
}
