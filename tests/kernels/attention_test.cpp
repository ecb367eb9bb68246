// Absorbed attention: right, the same from every instruction set, and blind to what it must not see.
#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/cpu/lanes.hpp"
#include "tests/kernels/fixtures.hpp"

using namespace troupe::testing;

namespace {

struct shape {
  int heads, rk, dr;
};
constexpr std::array shapes = {shape{4, 16, 8},    shape{1, 24, 4}, shape{9, 64, 16},
                               shape{16, 512, 64}, shape{3, 40, 6}, shape{40, 48, 8}};
constexpr std::array lengths = {1, 2, 31, 32, 33, 64, 95, 130, 255, 256, 257, 600};

struct problem {
  shape s;
  int length;
  std::vector<float> q, latents, keys;

  problem(const shape& wanted, int positions)
      : s(wanted),
        length(positions),
        q(values("mla.q", sized(s.heads * (s.rk + s.dr)), 2)),
        latents(values("mla.c", sized(length * s.rk))),
        keys(values("mla.k", sized(length * s.dr))) {}

  mla_shape parameters() const { return {s.heads, s.rk, s.dr, 0.21F}; }
};

std::vector<float> attend(const compute& math, const problem& p, division divided = division::none) {
  const latent_cache kv(math, p.s.rk, p.s.dr, p.length, p.latents, p.keys);
  return attention(math, p.parameters(), kv, p.q, {p.length}, divided);
}

std::vector<double> reference(const problem& p, bool bf16) {
  const auto stored = [&](float x) { return static_cast<double>(bf16 ? bf16_widen(bf16_round(x)) : x); };
  std::vector<double> out;
  const auto rk = static_cast<size_t>(p.s.rk), dr = static_cast<size_t>(p.s.dr);
  for (size_t h = 0; h < static_cast<size_t>(p.s.heads); ++h) {
    std::vector<double> weights;
    double largest = -1e300, total = 0;
    for (size_t t = 0; t < static_cast<size_t>(p.length); ++t) {
      double dot = 0;
      for (size_t i = 0; i < rk; ++i) dot += stored(p.q[h * (rk + dr) + i]) * stored(p.latents[t * rk + i]);
      for (size_t i = 0; i < dr; ++i) dot += stored(p.q[h * (rk + dr) + rk + i]) * stored(p.keys[t * dr + i]);
      weights.push_back(0.21 * dot);
      largest = std::max(largest, weights.back());
    }
    for (double& w : weights) total += w = std::exp(w - largest);
    for (size_t i = 0; i < rk; ++i) {
      double sum = 0;
      for (size_t t = 0; t < weights.size(); ++t) sum += weights[t] * stored(p.latents[t * rk + i]);
      out.push_back(sum / total);
    }
  }
  return out;
}

}  // namespace

TEST_CASE("attention agrees with double precision and never reads beyond its length") {
  for (const auto& math : all_profiles())
    for (const shape& s : shapes)
      for (const int length : lengths) {
        CAPTURE(math->description());
        CAPTURE(s.rk);
        CAPTURE(length);
        const problem p(s, length);
        const auto found = attend(*math, p);
        const bool bf16 = math->numeric_profile() == profile::amx_bf16;
        const auto expected = reference(p, bf16);
        double worst = 0;
        for (size_t i = 0; i < found.size(); ++i) {
          REQUIRE(std::isfinite(found[i]));
          worst = std::max(worst, std::abs(static_cast<double>(found[i]) - expected[i]));
        }
        // BF16 probabilities and results: half a unit of 2^-8 each.
        CHECK(worst < (bf16 ? 6e-3 : 2e-5));
      }
}

TEST_CASE("all instruction sets attend to the same bits") {
  const auto all = f32_implementations();
  for (const shape& s : shapes)
    for (const int length : lengths) {
      const problem p(s, length);
      const auto expected = attend(*all[0], p);
      for (const auto& math : all) CHECK(same_bits(expected, attend(*math, p)));
    }
}

TEST_CASE("the tiles' attention equals the emulation's in every bit") {
  for (const auto& math : amx_implementations()) {
    CAPTURE(math->description());
    for (const shape& s : shapes)
      for (const int length : {1, 31, 33, 255, 256, 257, 530}) {
        if (s.rk > 100 && length > 100 && length != 257) continue;  // the emulation is slow
        CAPTURE(s.heads);
        CAPTURE(s.rk);
        CAPTURE(length);
        const problem p(s, length);
        const latent_cache kv(*math, s.rk, s.dr, length, p.latents, p.keys);
        CHECK(same_bits(attention(*math, p.parameters(), kv, p.q, {length}),
                        emulated_attention(p.parameters(), kv, p.q, length)));
      }
  }
}

TEST_CASE("queries of BF16 values equal those of the same values in FP32") {
  for (const auto& math : all_profiles())
    for (const shape& s : shapes) {
      const mla_shape parameters{s.heads, s.rk, s.dr, 0.21F};
      const mla_form form = math->form_of(parameters);
      auto wide = values("queries.q", sized(s.heads * (s.rk + s.dr)), 2);
      std::vector<uint16_t> narrow(wide.size());
      bf16_round_row(wide.data(), narrow.data(), static_cast<int>(wide.size()));
      bf16_widen_row(narrow.data(), wide.data(), static_cast<int>(wide.size()));
      scratch wide_memory, narrow_memory;
      std::byte* of_wide = wide_memory.take(form.query_bytes);
      std::byte* of_narrow = narrow_memory.take(form.query_bytes);
      for (int head = 0; head < s.heads; head += form.heads_together) {
        const int end = std::min(head + form.heads_together, s.heads);
        math->mla_query(parameters, wide.data(), head, end, of_wide);
        math->mla_query(parameters, narrow.data(), head, end, of_narrow);
      }
      CAPTURE(math->description());
      CAPTURE(s.rk);
      CHECK(std::memcmp(of_wide, of_narrow, form.query_bytes) == 0);
    }
}

TEST_CASE("dividing a row's heads or positions changes nothing") {
  for (const auto& math : all_profiles())
    for (const shape& s : shapes)
      for (const int length : {77, 256, 700}) {
        const problem p(s, length);
        const auto whole = attend(*math, p);
        CHECK(same_bits(whole, attend(*math, p, division::heads)));
        CHECK(same_bits(whole, attend(*math, p, division::spans)));
      }
}

TEST_CASE("a row's attention depends on its own positions alone, whoever is attended with it") {
  for (const auto& math : all_profiles())
    for (const shape& s : {shape{4, 32, 8}, shape{16, 64, 16}, shape{40, 48, 8}}) {
      constexpr int rows = 21;
      const problem p(s, 600);
      const latent_cache kv(*math, s.rk, s.dr, 600, p.latents, p.keys);
      const auto q = values("mla.rows", sized(rows * s.heads * (s.rk + s.dr)), 2);
      std::vector<int> row_lengths;
      for (int i = 0; i < rows; ++i) row_lengths.push_back(1 + (i * 211) % 600);
      const auto together = attention(*math, p.parameters(), kv, q, row_lengths);
      const auto row_q = sized(s.heads * (s.rk + s.dr)), row_out = sized(s.heads * s.rk);
      for (size_t i = 0; i < rows; ++i) {
        // Alone, over a cache that ends where the row does.
        const latent_cache own(*math, s.rk, s.dr, row_lengths[i], p.latents, p.keys);
        const std::vector<float> one(q.begin() + static_cast<long>(i * row_q),
                                     q.begin() + static_cast<long>((i + 1) * row_q));
        const std::vector<float> found(together.begin() + static_cast<long>(i * row_out),
                                       together.begin() + static_cast<long>((i + 1) * row_out));
        CAPTURE(row_lengths[i]);
        CHECK(same_bits(attention(*math, p.parameters(), own, one, {row_lengths[i]}), found));
      }
    }
}

TEST_CASE("attention survives scores far beyond what exp can take") {
  for (const auto& math : all_profiles()) {
    problem p({2, 16, 8}, 70);
    for (float& v : p.q) v *= 1000;
    for (const float v : attend(*math, p)) CHECK(std::isfinite(v));
  }
}

TEST_CASE("writing a position touches that position's bytes alone, and all positions together the whole block") {
  for (const auto& math : all_profiles()) {
    const kv_layout layout = math->layout_kv(24, 6);
    const auto c = values("kv.c", 24), k = values("kv.k", 6);
    std::vector<int> writes(layout.block_bytes, 0);
    for (int offset = 0; offset < kv_layout::tokens; ++offset) {
      // A byte that is the same over either filling was written.
      std::vector<std::byte> one(layout.block_bytes, std::byte{0xee}), other(layout.block_bytes, std::byte{0x11});
      for (auto* block : {&one, &other}) math->kv_write(layout, block->data(), offset, c.data(), k.data());
      for (size_t i = 0; i < one.size(); ++i) writes[i] += one[i] == other[i] ? 1 : 0;
    }
    CHECK(std::count(writes.begin(), writes.end(), 1) == static_cast<long>(writes.size()));
  }
}

TEST_CASE("the tiles' KV block holds 32 values of all its positions, then the next 32") {
  for (const auto& math : amx_implementations()) {
    CAPTURE(math->description());
    const kv_layout layout = math->layout_kv(40, 6);  // two steps of latents, one of keys
    scratch memory;
    auto* block = reinterpret_cast<uint16_t*>(memory.take(layout.block_bytes));
    REQUIRE(layout.block_bytes == size_t{3} * 32 * 32 * sizeof(uint16_t));
    const auto c = values("kv.c", 40), k = values("kv.k", 6);
    math->kv_write(layout, reinterpret_cast<std::byte*>(block), 5, c.data(), k.data());
    const auto at = [&](int step, int i) {
      return block[(step * 32 + 5) * 32 + (layout.chained ? chained_place(i) : i)];
    };
    for (int i = 0; i < 40; ++i) CHECK(at(i / 32, i % 32) == bf16_round(c[sized(i)]));
    for (int i = 0; i < 6; ++i) CHECK(at(2, i) == bf16_round(k[sized(i)]));
    for (int i = 8; i < 32; ++i) CHECK(at(1, i) == 0);
    for (int i = 6; i < 32; ++i) CHECK(at(2, i) == 0);
  }
}
