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
constexpr std::array shapes = {shape{4, 16, 8}, shape{1, 24, 4}, shape{9, 64, 16}, shape{16, 512, 64}, shape{3, 40, 6}};
constexpr std::array lengths = {1, 2, 31, 32, 33, 64, 95, 130};

// A cache of `length` positions, every byte that is not written poisoned with NaN.
struct cache {
  kv_layout layout;
  std::vector<std::vector<std::byte>> storage;
  std::vector<const std::byte*> blocks;

  cache(const compute& math, const shape& s, int length, const std::vector<float>& latents,
        const std::vector<float>& keys)
      : layout(math.layout_kv(s.rk, s.dr)) {
    const int count = (length + kv_layout::tokens - 1) / kv_layout::tokens;
    storage.assign(static_cast<size_t>(count), std::vector<std::byte>(layout.block_bytes, std::byte{0xff}));
    for (int t = 0; t < length; ++t)
      math.kv_write(layout, storage[static_cast<size_t>(t / kv_layout::tokens)].data(), t % kv_layout::tokens,
                    latents.data() + t * s.rk, keys.data() + t * s.dr);
    for (const auto& block : storage) blocks.push_back(block.data());
  }
};

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

std::vector<float> attend(const compute& math, const problem& p, int split) {
  const cache kv(math, p.s, p.length, p.latents, p.keys);
  std::vector<float> out(sized(p.s.heads * p.s.rk), -1);
  scratch memory;
  for (int head = 0; head < p.s.heads; head += split)
    math.mla_core(p.parameters(), kv.layout, p.q.data(), kv.blocks, p.length, head, std::min(head + split, p.s.heads),
                  out.data(), memory);
  return out;
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
      for (size_t i = 0; i < rk; ++i)
        dot += static_cast<double>(p.q[h * (rk + dr) + i]) * stored(p.latents[t * rk + i]);
      for (size_t i = 0; i < dr; ++i)
        dot += static_cast<double>(p.q[h * (rk + dr) + rk + i]) * stored(p.keys[t * dr + i]);
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
        const auto found = attend(*math, p, s.heads);
        const auto expected = reference(p, math->numeric_profile() == profile::amx_bf16);
        double worst = 0;
        for (size_t i = 0; i < found.size(); ++i) {
          REQUIRE(std::isfinite(found[i]));
          worst = std::max(worst, std::abs(static_cast<double>(found[i]) - expected[i]));
        }
        CHECK(worst < 2e-5);
      }
}

TEST_CASE("all instruction sets attend to the same bits, for FP32 and for BF16 caches") {
  const auto all = f32_implementations();
  for (const shape& s : shapes)
    for (const int length : lengths) {
      const problem p(s, length);
      const auto expected = attend(*all[0], p, s.heads);
      for (const auto& math : all) CHECK(same_bits(expected, attend(*math, p, s.heads)));
    }
  std::vector<const lane_kernels*> tables = {&scalar_lanes()};
  if (cpu_features::detect().avx2) tables.push_back(&avx2_lanes());
  if (cpu_features::detect().avx512) tables.push_back(&avx512_lanes());
  const auto latents = bf16_values("mla.bf16", 32 * 80);
  const auto q = values("mla.q16", 6 * 76);
  std::vector<std::vector<float>> results;
  for (const lane_kernels* table : tables) {
    std::vector<float> out(6 * 60), room(mla_scratch_floats(6, 60, 16));
    const auto* block = reinterpret_cast<const std::byte*>(latents.data());
    table->mla_core({60, 16, 0.3F, true, q.data(), &block, 21, 0, 6, out.data(), room.data()});
    results.push_back(out);
    CHECK(same_bits(results.front(), out));
  }
}

TEST_CASE("splitting heads over calls changes nothing") {
  for (const auto& math : all_profiles())
    for (const shape& s : shapes) {
      const problem p(s, 77);
      const auto whole = attend(*math, p, s.heads);
      for (const int split : {1, 2, 3, 5, 8}) CHECK(same_bits(whole, attend(*math, p, split)));
    }
}

TEST_CASE("a row's attention depends on its own positions alone") {
  for (const auto& math : all_profiles()) {
    const shape s{4, 32, 8};
    const problem shorter(s, 45), longer(s, 100);
    const cache kv(*math, s, 100, longer.latents, longer.keys);
    std::vector<float> out(sized(s.heads * s.rk));
    scratch memory;
    math->mla_core(shorter.parameters(), kv.layout, shorter.q.data(), kv.blocks, 45, 0, s.heads, out.data(), memory);
    CHECK(same_bits(out, attend(*math, shorter, s.heads)));
  }
}

TEST_CASE("attention survives scores far beyond what exp can take") {
  for (const auto& math : all_profiles()) {
    problem p({2, 16, 8}, 70);
    for (float& v : p.q) v *= 1000;
    for (const float v : attend(*math, p, 2)) CHECK(std::isfinite(v));
  }
}

TEST_CASE("writing a position touches that position's bytes alone") {
  for (const auto& math : all_profiles()) {
    const kv_layout layout = math->layout_kv(24, 6);
    std::vector<std::byte> block(layout.block_bytes, std::byte{0xee});
    const auto c = values("kv.c", 24), k = values("kv.k", 6);
    math->kv_write(layout, block.data(), 5, c.data(), k.data());
    const size_t row = layout.block_bytes / kv_layout::tokens;
    for (size_t i = 0; i < block.size(); ++i) {
      if (i >= 5 * row && i < 6 * row) continue;
      REQUIRE(block[i] == std::byte{0xee});
    }
    CHECK(std::count(block.begin(), block.end(), std::byte{0xee}) < static_cast<long>(block.size()));
  }
}
