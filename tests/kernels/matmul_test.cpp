// Matrix products of every profile: right, independent of batch, blocking and instruction set.
#include <algorithm>
#include <array>
#include <limits>

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

// Few rows, a tile of rows, more: each passes over the columns in its own way.
static std::vector<std::pair<weight_dtype, int>> ranged_products() {
  std::vector<std::pair<weight_dtype, int>> all;
  for (const weight_dtype dtype : dtypes)
    for (const int m : {3, 7, 19}) all.emplace_back(dtype, m);
  return all;
}

TEST_CASE("column ranges add up to the whole product and touch nothing else") {
  for (const auto& math : all_profiles())
    for (const auto& [dtype, m] : ranged_products()) {
      const int n = 130, k = 200;
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

TEST_CASE("BF16 rows make the same input as their FP32 values") {
  for (const auto& math : all_profiles())
    for (const int k : {1, 24, 32, 70, 256}) {
      const auto narrow = bf16_values("input.x", sized(k), 3);
      std::vector<float> wide(sized(k));
      bf16_widen_row(narrow.data(), wide.data(), k);
      scratch first, second;
      const size_t bytes = math->input_bytes(19, k);
      std::byte* a = first.take(bytes);
      std::byte* b = second.take(bytes);
      std::memset(a, 0, bytes);
      std::memset(b, 0, bytes);
      for (const int row : {0, 7, 16, 18}) {
        math->input_row(wide.data(), row, k, a);
        math->input_row(narrow.data(), row, k, b);
      }
      CHECK(std::memcmp(a, b, bytes) == 0);
    }
}

namespace {

// An input of FP32 rows x [m, k].
product_input input_of(const compute& math, const std::vector<float>& x, int m, int k, scratch& memory) {
  std::byte* data = memory.take(math.input_bytes(m, k));
  for (int i = 0; i < m; ++i) math.input_row(x.data() + i * k, i, k, data);
  return {data, m, k};
}

}  // namespace

TEST_CASE("a gated product equals two products, their activation and the rounding of the next input") {
  for (const auto& math : all_profiles())
    for (const weight_dtype dtype : dtypes)
      for (const int m : {1, 3, 5, 16, 33, 70, 300}) {
        const int n = 130, k = 72;
        const auto gate = math->pack(make_weight("gate.W", dtype, n, k).view(), math->preferred_format());
        const auto up = math->pack(make_weight("up.W", dtype, n, k).view(), math->preferred_format());
        const auto down = math->pack(make_weight("down.W", dtype, 20, n).view(), math->preferred_format());
        const auto x = values("gated.x", sized(m * k));
        auto expected = product(*math, gate, x, m);
        const auto factor = product(*math, up, x, m);
        math->silu_mul(expected.data(), factor.data(), expected.data(), m * n);
        scratch input_memory, hidden_memory;
        std::byte* hidden = hidden_memory.take(math->input_bytes(m, n));
        const auto input = input_of(*math, x, m, k, input_memory);
        math->gated_matmul(gate, up, input, hidden, 0, 64);
        math->gated_matmul(gate, up, input, hidden, 64, n);
        std::vector<float> y(sized(m * 20));
        math->matmul(down, {hidden, m, n}, y.data(), 20, 0, 20);
        CAPTURE(math->description());
        CAPTURE(m);
        CHECK(same_bits(y, product(*math, down, expected, m)));
      }
}

TEST_CASE("rows that lie apart hold the product, and values that are not finite are told") {
  for (const auto& math : all_profiles())
    for (const auto& [kind, m] : {std::pair{element::f32, 37},
                                  {element::bf16, 37},
                                  {element::bf16, 9},
                                  {element::f32, 2},
                                  {element::bf16, 2}}) {
      const int n = 90, k = 40;
      const auto packed = math->pack(make_weight("apart.W", weight_dtype::bf16, n, k).view(), math->preferred_format());
      auto x = values("apart.x", sized(m * k));
      auto expected = product(*math, packed, x, m);
      const size_t element_bytes = kind == element::bf16 ? 2 : 4;
      std::vector<std::vector<std::byte>> out(sized(m), std::vector<std::byte>(sized(n) * element_bytes));
      std::vector<std::byte*> rows;
      for (auto& row : out) rows.push_back(row.data());
      scratch memory;
      CHECK(math->matmul_apart(packed, input_of(*math, x, m, k, memory), kind, rows.data(), 0, 64));
      CHECK(math->matmul_apart(packed, input_of(*math, x, m, k, memory), kind, rows.data(), 64, n));
      for (int i = 0; i < m; ++i) {
        std::vector<uint16_t> narrow(sized(n));
        bf16_round_row(expected.data() + i * n, narrow.data(), n);
        const void* wanted = kind == element::bf16 ? static_cast<const void*>(narrow.data()) : expected.data() + i * n;
        CHECK(std::memcmp(out[sized(i)].data(), wanted, out[sized(i)].size()) == 0);
      }
      x[sized((m - 1) * k + 3)] = std::numeric_limits<float>::quiet_NaN();
      CHECK(!math->matmul_apart(packed, input_of(*math, x, m, k, memory), kind, rows.data(), 0, n));
      x[sized((m - 1) * k + 3)] = std::numeric_limits<float>::infinity();
      CHECK(!math->matmul_apart(packed, input_of(*math, x, m, k, memory), kind, rows.data(), 0, n));
    }
}

TEST_CASE("a large weight lies on a huge-page boundary") {
  const auto math = compute::make(profile::f32);
  const test_weight w = make_weight("huge.W", weight_dtype::f32, 2064, 1024);
  const packed_matrix packed = math->pack(w.view(), weight_format::f32);
  CHECK(packed.bytes() >= size_t{2064} * 1024 * 4);
  CHECK(reinterpret_cast<uintptr_t>(packed.data()) % (size_t{2} << 20) == 0);
}
