// Golden bits: two machines that claim one profile must agree in every bit. The hashes were made on an Intel
// server CPU with AMX; every machine checks all that it can run, and the tiles' bits through their emulation.
//
// A change of these numbers is a change of a numeric profile: nodes built before and after must not mix.
#include <cstdint>

#include "kernels/cpu/lanes.hpp"
#include "tests/kernels/fixtures.hpp"

using namespace troupe::testing;

namespace {

constexpr uint64_t golden_f32_products = 0x79b6a592aa5bd24a;
constexpr uint64_t golden_f32_rows = 0x35ef1d8341b31aec;
constexpr uint64_t golden_f32_attention = 0xfa3c71869fe7760f;
constexpr uint64_t golden_amx_products = 0xdcbb4b83931c4864;
constexpr uint64_t golden_amx_attention = 0xd9b4e523236c9b6;
constexpr uint64_t golden_positions = 0xd8484032c143b3f3;
constexpr uint64_t golden_choices = 0x748d67351fcc98cb;
constexpr uint64_t golden_formats = 0x9d56e0453aa09d15;

constexpr int n = 50, k = 200, m = 5;

template <class Multiply>
uint64_t products(Multiply multiply) {
  uint64_t hash = fnv1a("products");
  for (const weight_dtype dtype : {weight_dtype::f32, weight_dtype::bf16, weight_dtype::fp8_e4m3})
    hash = hash_bits(multiply(make_weight("golden.W", dtype, n, k), values("golden.x", m * k)), hash);
  return hash;
}

uint64_t products_of(const compute& math) {
  return products([&](const test_weight& w, const std::vector<float>& x) {
    return product(math, math.pack(w.view(), math.preferred_format()), x, m);
  });
}

uint64_t rows(const compute& math) {
  const int width = 1000;
  const auto x = values("golden.a", width, 8), w = values("golden.b", width);
  std::vector<float> out(width);
  scratch memory;
  uint64_t hash = fnv1a("rows");
  math.rms_norm(x.data(), w.data(), out.data(), width, 1e-6F);
  hash = hash_bits(out, hash);
  math.silu_mul(x.data(), w.data(), out.data(), width);
  hash = hash_bits(out, hash);
  math.sigmoid(x.data(), out.data(), width);
  hash = hash_bits(out, hash);
  math.axpy(0.7F, x.data(), out.data(), width);
  hash = hash_bits(out, hash);
  return hash_bits(std::vector<float>{math.log_sum_exp(x.data(), width, memory)}, hash);
}

// `length` positions: in profile f32 three blocks, the last short; in tiles two spans.
struct attention_problem {
  static constexpr int heads = 5, rk = 48, dr = 16, width = rk + dr;
  static constexpr mla_shape shape{heads, rk, dr, 0.3F};
  int length;
  std::vector<float> q = values("golden.q", heads* width, 2);
  std::vector<float> latents, keys;

  explicit attention_problem(int positions) : length(positions) {
    const auto kv = values("golden.kv", sized(length * width));
    for (auto row = kv.begin(); row != kv.end(); row += width) {
      latents.insert(latents.end(), row, row + rk);
      keys.insert(keys.end(), row + rk, row + width);
    }
  }
};
constexpr int f32_positions = 75, amx_positions = 300;

uint64_t attention_of(const compute& math, int length) {
  const attention_problem p(length);
  const latent_cache kv(math, p.rk, p.dr, p.length, p.latents, p.keys);
  return hash_bits(attention(math, p.shape, kv, p.q, {p.length}));
}

// From BF16 latents in the layout of tiles: blocks [3 steps: two of latents, one of keys][32 positions][32].
uint64_t emulated_attention_of(int length) {
  const attention_problem p(length);
  constexpr int block_elements = 3 * 32 * 32;
  std::vector<uint16_t> cache(10 * block_elements);
  for (int t = 0; t < p.length; ++t) {
    uint16_t* row = cache.data() + t / 32 * block_elements + t % 32 * 32;
    bf16_round_row(p.latents.data() + t * p.rk, row, 32);
    bf16_round_row(p.latents.data() + t * p.rk + 32, row + 32 * 32, p.rk - 32);
    bf16_round_row(p.keys.data() + t * p.dr, row + 2 * 32 * 32, p.dr);
  }
  std::vector<const std::byte*> blocks;
  for (size_t b = 0; b < 10; ++b)
    blocks.push_back(reinterpret_cast<const std::byte*>(cache.data() + b * block_elements));
  std::vector<uint16_t> narrow(p.heads * p.rk);
  amx_emulate_attention({p.heads, p.rk, p.dr, 0.3F}, blocks.data(), p.q.data(), p.length, narrow.data());
  std::vector<float> out(narrow.size());
  bf16_widen_row(narrow.data(), out.data(), static_cast<int>(out.size()));
  return hash_bits(out);
}

uint64_t positions() {
  rope_parameters p;
  p.dim = 64;
  p.factor = 40;
  p.mscale_all_dim = 1;
  const auto w = inverse_frequencies(p);
  uint64_t hash = hash_bits(w);
  std::vector<float> cosines(32), sines(32);
  for (const int64_t position : {0, 1, 77, 4096, 131071, 999999}) {
    rope_table(w, position, rope_cos_sin_scale(p), cosines.data(), sines.data());
    auto x = values("golden.rope", 64);
    rope_rotate(x.data(), cosines.data(), sines.data(), 64);
    hash = hash_bits(x, hash_bits(sines, hash_bits(cosines, hash)));
  }
  return hash_bits(std::vector<double>{softmax_scale(p, 192)}, hash);
}

// Routing and sampling.
uint64_t choices() {
  std::vector<float> all;
  for (const bool sigmoid : {true, false}) {
    router_parameters p;
    p.experts = 64;
    p.groups = 8;
    p.groups_kept = 4;
    p.top_k = 6;
    p.sigmoid = p.biased_selection = sigmoid;
    std::vector<routed_expert> out(6);
    route(p, values("golden.z", 64, 4).data(), values("golden.bias", 64, 0.1F).data(), out.data());
    for (const routed_expert& e : out) all.insert(all.end(), {static_cast<float>(e.expert), e.gate});
  }
  const auto math = compute::make(profile::f32);
  const auto logits = values("golden.logits", 3000, 9);
  scratch memory;
  for (const sampling_parameters& p : {sampling_parameters{1, 1, 0}, {0.6F, 0.95F, 0}, {2, 0.9F, 40}, {0, 1, 0}})
    for (uint32_t i = 0; i < 40; ++i) {
      const sampled_token token = sample(*math, logits.data(), 3000, p, 1234567890123, 1, i, memory);
      all.insert(all.end(), {static_cast<float>(token.token), token.logprob});
    }
  return hash_bits(all);
}

// FP8 and BF16 rounding, exp and log.
uint64_t formats() {
  const auto x = values("golden.formats", 4000, 600);
  std::vector<float> out;
  std::vector<uint8_t> codes(128);
  for (size_t i = 0; i + 128 <= x.size(); i += 128) {
    out.push_back(quantise_tile(x.data() + i, 128, codes.data()));
    for (const uint8_t code : codes) out.push_back(e4m3_decode(code));
  }
  for (const float v : x) {
    out.push_back(bf16_widen(bf16_round(v)));
    out.push_back(e4m3_decode(e4m3_encode(v)));
    out.push_back(exp_f32(v / 6));
    out.push_back(log_f32(std::abs(v)));
  }
  return hash_bits(out);
}

}  // namespace

TEST_CASE("profile f32 has its golden bits on every instruction set") {
  for (const auto& math : f32_implementations()) {
    CAPTURE(math->description());
    CHECK(products_of(*math) == golden_f32_products);
    CHECK(rows(*math) == golden_f32_rows);
    CHECK(attention_of(*math, f32_positions) == golden_f32_attention);
  }
}

TEST_CASE("profile amx_bf16 has its golden bits, from all tiles and from their emulation") {
  for (const auto& math : amx_implementations()) {
    CAPTURE(math->description());
    CHECK(products_of(*math) == golden_amx_products);
    CHECK(rows(*math) == golden_f32_rows);
    CHECK(attention_of(*math, amx_positions) == golden_amx_attention);
  }
  CHECK(products([](const test_weight& w, const std::vector<float>& x) {
          return emulated(pack_amx(weight_reader(w.view(), false), false), x, m);
        }) == golden_amx_products);
  CHECK(emulated_attention_of(amx_positions) == golden_amx_attention);
}

TEST_CASE("what all profiles share has its golden bits") {
  CHECK(positions() == golden_positions);
  CHECK(choices() == golden_choices);
  CHECK(formats() == golden_formats);
}
