// The FP8 codec, activation tiles and block products of MODEL.md 17.6; BF16 rounding.
#include <array>
#include <bit>
#include <limits>
#include <numeric>

#include "tests/kernels/fixtures.hpp"

using namespace troupe::testing;

TEST_CASE("E4M3 encodes and decodes the published vectors") {
  struct vector {
    float value;
    int code;
    float back;
  };
  const std::array vectors = {vector{1, 0x38, 1},
                              vector{1.0625F, 0x38, 1},
                              vector{1.1875F, 0x3A, 1.25F},
                              vector{17, 0x58, 16},
                              vector{19, 0x5A, 20},
                              vector{248, 0x78, 256},
                              vector{447.9F, 0x7E, 448},
                              vector{456, 0x7E, 448},
                              vector{464, 0x7E, 448},
                              vector{1e6F, 0x7E, 448},
                              vector{-300, 0xF9, -288},
                              vector{3.1415927F, 0x45, 3.25F},
                              vector{0.1F, 0x1D, 0.1015625F},
                              vector{0x1p-10F, 0x00, 0},
                              vector{0x1p-9F, 0x01, 0x1p-9F},
                              vector{0x1.8p-9F, 0x02, 0x1p-8F},
                              vector{0x1p-6F, 0x08, 0x1p-6F},
                              vector{-0.0F, 0x80, -0.0F}};
  for (const vector& v : vectors) {
    CAPTURE(v.value);
    CHECK(e4m3_encode(v.value) == v.code);
    CHECK(std::bit_cast<uint32_t>(e4m3_decode(static_cast<uint8_t>(v.code))) == std::bit_cast<uint32_t>(v.back));
  }
}

TEST_CASE("all 256 E4M3 codes mean what the format defines and encode back to themselves") {
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const float found = e4m3_decode(static_cast<uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      CHECK(std::isnan(found));
    } else {
      const double magnitude =
          exponent == 0 ? std::ldexp(mantissa / 8.0, -6) : std::ldexp(1 + mantissa / 8.0, exponent - 7);
      CHECK(static_cast<double>(found) == (code & 0x80 ? -magnitude : magnitude));
    }
    CHECK(e4m3_encode(found) == code);
  }
}

TEST_CASE("E4M3 midpoints round to the even code") {
  for (int code = 0; code < 0x7e; ++code) {
    const float low = e4m3_decode(static_cast<uint8_t>(code)), high = e4m3_decode(static_cast<uint8_t>(code + 1));
    const float middle = (low + high) / 2;
    CHECK(e4m3_encode(middle) == (code % 2 == 0 ? code : code + 1));
    CHECK(e4m3_encode(std::nextafter(middle, 0.0F)) == code);
    CHECK(e4m3_encode(std::nextafter(middle, 1000.0F)) == code + 1);
  }
}

TEST_CASE("an activation tile quantises to the published codes") {
  std::array<float, 128> x;
  for (int i = 0; i < 128; ++i) x[static_cast<size_t>(i)] = static_cast<float>(37 * i % 101 - 50) / 16;
  std::array<uint8_t, 128> codes;
  const float scale = quantise_tile(x.data(), 128, codes.data());
  CHECK(std::bit_cast<uint32_t>(scale) == 0x3BE49249);
  const std::array first = {0xFE, 0xEF, 0x75, 0xFB, 0xDD, 0x7A, 0xF8, 0x68,
                            0x7C, 0xF3, 0x72, 0xFD, 0xEB, 0x77, 0xFA, 0x00};
  for (size_t i = 0; i < first.size(); ++i) CHECK(codes[i] == first[i]);
  CHECK(std::accumulate(codes.begin(), codes.end(), 0) == 22707);
  float worst = 0;
  for (size_t i = 0; i < 128; ++i) worst = std::max(worst, std::abs(e4m3_decode(codes[i]) * scale - x[i]));
  CHECK(worst == doctest::Approx(0.10714).epsilon(1e-4));
}

TEST_CASE("a tile of zeros quantises to zeros and a short tile stays inside its memory") {
  const std::array<float, 5> zeros{};
  std::array<uint8_t, 6> codes{9, 9, 9, 9, 9, 9};
  CHECK(quantise_tile(zeros.data(), 5, codes.data()) == 1e-4F / 448);
  for (size_t i = 0; i < 5; ++i) CHECK(codes[i] == 0);
  CHECK(codes[5] == 9);
}

namespace {

// MODEL.md 10.2: amax / 448 of each 128 x 128 block, codes of w / scale.
test_weight quantised_block_weight(int n, int k) {
  test_weight w{weight_dtype::fp8_e4m3, n, k, std::vector<std::byte>(sized(n * k)), {}, {}};
  const int column_blocks = (k + 127) / 128;
  w.scales.assign(sized((n + 127) / 128 * column_blocks), 1e-4F);
  const auto real = [&](int i) { return t0_value("fp8.W", static_cast<uint64_t>(i)); };
  const auto block = [&](int i) { return sized(i / k / 128 * column_blocks + i % k / 128); };
  for (int i = 0; i < n * k; ++i) w.scales[block(i)] = std::max(w.scales[block(i)], std::abs(real(i)));
  for (float& scale : w.scales) scale /= 448;
  for (int i = 0; i < n * k; ++i) w.data[static_cast<size_t>(i)] = std::byte{e4m3_encode(real(i) / w.scales[block(i)])};
  return w;
}

}  // namespace

TEST_CASE("FP8 block weights quantise and multiply (w8a16) to the published numbers in every profile") {
  const int n = 130, k = 256;
  const test_weight w = quantised_block_weight(n, k);
  const std::array<uint32_t, 4> scales = {0x3A124925, 0x3A124925, 0x3A124925, 0x3A112492};
  for (size_t i = 0; i < 4; ++i) CHECK(std::bit_cast<uint32_t>(w.scales[i]) == scales[i]);
  const std::array row_0 = {0xE8, 0x72, 0x69, 0xE2, 0x7E, 0xF2, 0xEF, 0x7D};
  const std::array row_129 = {0x77, 0x7A, 0x74, 0x7D, 0x75, 0xFB, 0xF9, 0xEB};
  for (size_t i = 0; i < 8; ++i) {
    CHECK(std::to_integer<int>(w.data[i]) == row_0[i]);
    CHECK(std::to_integer<int>(w.data[129 * 256 + i]) == row_129[i]);
  }
  std::vector<float> x(2 * 256);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(t0_k("fp8.x", i) - 128) / 64;
  struct expected {
    int row, column;
    float value;
  };
  const std::array published = {expected{0, 0, -0.6403765F},   expected{0, 1, 1.0760324F},
                                expected{0, 127, 0.4101040F},  expected{0, 128, -3.0593616F},
                                expected{0, 129, -0.8754340F}, expected{1, 0, 0.0423671F},
                                expected{1, 129, 0.4660582F}};
  for (const auto& math : all_profiles()) {
    CAPTURE(math->description());
    // x is exact in BF16 and so are the codes: both profiles differ from exact only in FP32 rounding.
    const auto y = product(*math, math->pack(w.view(), math->preferred_format()), x, 2);
    for (const expected& e : published) CHECK(std::abs(y[sized(e.row * n + e.column)] - e.value) < 3e-6F);
  }
}

TEST_CASE("BF16 rounds to nearest even and keeps NaN and infinity") {
  CHECK(bf16_round(1.0F) == 0x3f80);
  CHECK(bf16_round(0x1.01p0F) == 0x3f80);      // tie, down to even
  CHECK(bf16_round(0x1.03p0F) == 0x3f82);      // tie, up to even
  CHECK(bf16_round(0x1.010002p0F) == 0x3f81);  // just above the tie
  CHECK(bf16_round(std::numeric_limits<float>::max()) == 0x7f80);
  CHECK(bf16_round(-std::numeric_limits<float>::infinity()) == 0xff80);
  CHECK(std::isnan(bf16_widen(bf16_round(std::bit_cast<float>(0x7f800001U)))));
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float wide = bf16_widen(static_cast<uint16_t>(bits));
    if (!std::isnan(wide)) REQUIRE(bf16_round(wide) == bits);
  }
}
