// The AMX product against its emulation in plain C++ and against profile f32.
#include <algorithm>
#include <bit>

#include "kernels/cpu/amx_emulation.hpp"
#include "kernels/cpu/amx_pack.hpp"
#include "tests/kernels/fixtures.hpp"

using namespace troupe::testing;

TEST_CASE("the tiles' products equal the emulation's in every bit") {
  for (const auto& math : amx_implementations()) {
    CAPTURE(math->description());
    for (const weight_dtype dtype : {weight_dtype::f32, weight_dtype::bf16, weight_dtype::fp8_e4m3})
      for (const auto& [n, k] : {std::pair{16, 32}, {18, 24}, {130, 40}, {48, 128}, {33, 300}, {70, 513}})
        for (const int m : {1, 2, 3, 4, 5, 16, 19, 33}) {
          CAPTURE(n);
          CAPTURE(k);
          CAPTURE(m);
          const test_weight w = make_weight("tiles.W", dtype, n, k);
          const packed_matrix packed = math->pack(w.view(), weight_format::amx_bf16);
          const auto x = values("tiles.x", sized(m * k), 3);
          CHECK(same_bits(product(*math, packed, x, m), emulated(packed, x, m)));
        }
  }
}

TEST_CASE("the emulation knows how tiles treat denormals, infinities and cancellation") {
  for (const auto& math : amx_implementations()) {
    CAPTURE(math->description());
    const int n = 64, k = 96, rows = 32;
    // Exponents from the whole range of BF16, so that products underflow, cancel and overflow to infinity and NaN.
    for (const int shift : {0, 16, 44, 64, 100, 170, 215}) {
      test_weight w{weight_dtype::bf16, n, k, std::vector<std::byte>(sized(n * k * 2)), {}, {}};
      std::vector<float> x(sized(rows * k));
      const auto any = [&](const char* name, size_t i, int spread) {
        const auto bits = static_cast<uint32_t>(t0_mix(fnv1a(name) + i) >> 32);
        const uint32_t exponent = (bits >> 8) % static_cast<uint32_t>(spread) + static_cast<uint32_t>(shift);
        return static_cast<uint16_t>((bits & 0x807fU) | std::min(exponent, 254U) << 7);
      };
      for (size_t i = 0; i < w.data.size() / 2; ++i) {
        const uint16_t value = any("odd.W", i, 40);
        std::memcpy(w.data.data() + 2 * i, &value, 2);
      }
      for (size_t i = 0; i < x.size(); ++i) x[i] = bf16_widen(any("odd.x", i, 40));
      const packed_matrix packed = math->pack(w.view(), weight_format::amx_bf16);
      for (const int m : {1, 2, 3, 4, 5, 8, 9, 16, rows}) {  // few rows pass through vector registers
        const auto tiles = product(*math, packed, x, m), plain = emulated(packed, x, m);
        CAPTURE(shift);
        CAPTURE(m);
        // Which NaN it is does not belong to the contract.
        for (size_t i = 0; i < tiles.size(); ++i)
          REQUIRE((std::bit_cast<uint32_t>(tiles[i]) == std::bit_cast<uint32_t>(plain[i]) ||
                   (std::isnan(tiles[i]) && std::isnan(plain[i]))));
      }
    }
  }
}

TEST_CASE("few rows of inputs that vanish give the emulation's bits under FP8 weights too") {
  for (const auto& math : amx_implementations()) {
    CAPTURE(math->description());
    const int n = 40, k = 700, rows = 20;
    const test_weight w = make_weight("vanishing.W", weight_dtype::fp8_e4m3, n, k);
    const packed_matrix packed = math->pack(w.view(), weight_format::amx_bf16);
    for (const float scale : {1e-30F, 1e-36F, 1e-38F}) {
      auto x = values("vanishing.x", sized(rows * k), 3);
      for (float& value : x) value *= scale;
      for (const int m : {1, 2, 3, 4, 5, 8, 9, 16, rows}) {
        CAPTURE(scale);
        CAPTURE(m);
        CHECK(same_bits(product(*math, packed, x, m), emulated(packed, x, m)));
      }
    }
  }
}

TEST_CASE("FP8 tiles with rare codes and without give the emulation's bits") {
  for (const auto& math : amx_implementations()) {
    CAPTURE(math->description());
    const int n = 80, k = 2200, most = 40;  // more steps than a word has marks
    test_weight w = make_weight("rare.W", weight_dtype::fp8_e4m3, n, k);
    const std::array<uint8_t, 4> rare = {0x00, 0x83, 0x07, 0x80};
    for (const size_t period : {1U, 3000U, 0U}) {  // everywhere, in some tiles, nowhere
      for (size_t i = 0; i < w.data.size(); ++i) {
        auto code = static_cast<uint8_t>(t0_mix(i) >> 40U);
        if (is_rare(code)) code = static_cast<uint8_t>((code & 0x80U) | 0x08U | i % 8);
        if (period != 0 && i % period == 0) code = rare[i / period % rare.size()];
        w.data[i] = std::byte{code};
      }
      const packed_matrix packed = math->pack(w.view(), weight_format::amx_bf16);
      const amx_product body = amx_product_of(packed);
      const uint64_t marks = *body.rare_tiles(0);
      CHECK((period == 0 ? marks == 0 : period == 1 ? ~marks == 0 : marks != 0 && ~marks != 0));
      const auto x = values("rare.x", sized(most * k));
      for (const int m : {1, 3, 4, 8, 9, 16, 17, most}) {
        CAPTURE(period);
        CAPTURE(m);
        CHECK(same_bits(product(*math, packed, x, m), emulated(packed, x, m)));
      }
    }
  }
}

TEST_CASE("the emulation alone is right within BF16 rounding on any machine") {
  const int n = 40, k = 200, m = 3;
  for (const weight_dtype dtype : {weight_dtype::bf16, weight_dtype::fp8_e4m3}) {
    const test_weight w = make_weight("emulation.W", dtype, n, k);
    const auto x = values("emulation.x", sized(m * k));
    const auto y = emulated(pack_amx(weight_reader(w.view(), false), false), x, m);
    for (int i = 0; i < m; ++i)
      for (int j = 0; j < n; ++j) {
        double sum = 0, size = 0;
        for (int at = 0; at < k; ++at) {
          const double term =
              static_cast<double>(x[sized(i * k + at)]) * static_cast<double>(w.real[sized(j * k + at)]);
          sum += term;
          size += std::abs(term);
        }
        CHECK(std::abs(static_cast<double>(y[sized(i * n + j)]) - sum) <= 4e-3 * size);
      }
  }
}

TEST_CASE("profile amx_bf16 multiplies f32 weights exactly as profile f32 does") {
  for (const auto& amx : amx_implementations()) {
    CAPTURE(amx->description());
    const auto f32 = compute::make(profile::f32);
    const test_weight w = make_weight("router.W", weight_dtype::bf16, 70, 100);
    const auto x = values("router.x", 500);
    CHECK(same_bits(product(*amx, amx->pack(w.view(), weight_format::f32), x, 5),
                    product(*f32, f32->pack(w.view(), weight_format::f32), x, 5)));
  }
}

TEST_CASE("a NaN code of an FP8 weight gives NaN in every profile") {
  for (const auto& math : all_profiles()) {
    test_weight w = make_weight("nan.W", weight_dtype::fp8_e4m3, 20, 40);
    w.data[3 * 40 + 7] = std::byte{0xff};
    const auto y = product(*math, math->pack(w.view(), math->preferred_format()), values("nan.x", 40), 1);
    for (size_t j = 0; j < y.size(); ++j) CHECK(std::isnan(y[j]) == (j == 3));
  }
}
