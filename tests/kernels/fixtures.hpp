// What the kernel tests share: the profiles this CPU can run, deterministic data, hashes of bits.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/compute.hpp"
#include "kernels/cpu/amx_emulation.hpp"
#include "kernels/cpu/amx_pack.hpp"
#include "tests/t0.hpp"

namespace troupe::testing {

using namespace troupe::kernels;

// Every implementation of profile f32 that this CPU can run, the plain one first.
inline std::vector<std::unique_ptr<compute>> f32_implementations() {
  std::vector<std::unique_ptr<compute>> all;
  all.push_back(compute::make_f32(isa::scalar));
  if (cpu_features::detect().avx2) {
    all.push_back(compute::make_f32(isa::avx2));
  } else {
    MESSAGE("skipped: this CPU has no AVX2");
  }
  if (cpu_features::detect().avx512) {
    all.push_back(compute::make_f32(isa::avx512));
  } else {
    MESSAGE("skipped: this CPU has no AVX-512");
  }
  return all;
}

// Every implementation of profile amx_bf16 that this CPU can run; perhaps none.
inline std::vector<std::unique_ptr<compute>> amx_implementations() {
  std::vector<std::unique_ptr<compute>> all;
  if (cpu_features::detect().hardware_tiles) {
    all.push_back(compute::make_amx(tiles::hardware));
  } else {
    MESSAGE("skipped: this CPU has no AMX");
  }
  if (cpu_features::detect().vector_tiles) {
    all.push_back(compute::make_amx(tiles::vector));
  } else {
    MESSAGE("skipped: this CPU has no AVX-512 with BF16 products");
  }
  return all;
}

// The fastest code of profile f32, and all of amx_bf16.
inline std::vector<std::unique_ptr<compute>> all_profiles() {
  std::vector<std::unique_ptr<compute>> all = amx_implementations();
  all.insert(all.begin(), compute::make(profile::f32));
  return all;
}

// An index or count for the standard library.
constexpr size_t sized(int value) { return static_cast<size_t>(value); }

// Values in about [-spread, spread) with full FP32 mantissas.
inline std::vector<float> values(std::string_view name, size_t count, float spread = 1) {
  std::vector<float> out(count);
  for (size_t i = 0; i < count; ++i) {
    const auto bits = static_cast<int64_t>(t0_mix(fnv1a(name) + i) >> 40);  // 24 bits
    out[i] = static_cast<float>(bits - (int64_t{1} << 23)) * (spread * 0x1p-23F);
  }
  return out;
}

inline std::vector<uint16_t> bf16_values(std::string_view name, size_t count, float spread = 1) {
  const std::vector<float> wide = values(name, count, spread);
  std::vector<uint16_t> out(count);
  bf16_round_row(wide.data(), out.data(), static_cast<int>(count));
  return out;
}

// A weight in memory together with what it means in FP32.
struct test_weight {
  weight_dtype dtype;
  int n, k;
  std::vector<std::byte> data;
  std::vector<float> scales;
  std::vector<float> real;  // [n, k], the exact FP32 value of profile f32

  weight_view view() const { return {dtype, data.data(), scales.empty() ? nullptr : scales.data(), n, k}; }
};

inline test_weight make_weight(std::string_view name, weight_dtype dtype, int n, int k) {
  test_weight w{dtype, n, k, {}, {}, {}};
  const size_t count = static_cast<size_t>(n) * static_cast<size_t>(k);
  const auto keep = [&](const auto& elements) {
    w.data.resize(elements.size() * sizeof(elements[0]));
    std::memcpy(w.data.data(), elements.data(), w.data.size());
  };
  if (dtype == weight_dtype::f32) {
    w.real = values(name, count);
    keep(w.real);
  } else if (dtype == weight_dtype::bf16) {
    const auto narrow = bf16_values(name, count);
    w.real.resize(count);
    bf16_widen_row(narrow.data(), w.real.data(), static_cast<int>(count));
    keep(narrow);
  } else {
    std::vector<uint8_t> codes(count);
    const int row_blocks = (n + 127) / 128, column_blocks = (k + 127) / 128;
    w.scales = values(std::string(name) + ".scales", sized(row_blocks * column_blocks), 0.01F);
    w.real.resize(count);
    for (size_t i = 0; i < count; ++i) {
      codes[i] = static_cast<uint8_t>(t0_k(name, i));
      if ((codes[i] & 0x7f) == 0x7f) codes[i] ^= 1;  // no NaN
      const size_t row = i / static_cast<size_t>(k), column = i % static_cast<size_t>(k);
      const size_t block = row / 128 * static_cast<size_t>(column_blocks) + column / 128;
      w.real[i] = e4m3_decode(codes[i]) * w.scales[block];
    }
    keep(codes);
  }
  return w;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// FNV-1a over the bytes of some numbers; chain by passing the last hash.
template <class Number>
uint64_t hash_bits(const std::vector<Number>& numbers, uint64_t hash = 0xcbf29ce484222325) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(numbers.data());
  for (size_t i = 0; i < numbers.size() * sizeof(Number); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3;
  return hash;
}

// y = x W^T by one call over all columns.
inline std::vector<float> product(const compute& math, const packed_matrix& w, const std::vector<float>& x, int m) {
  scratch memory;
  std::vector<float> y(static_cast<size_t>(m) * static_cast<size_t>(w.n()), -1);
  math.matmul(w, x.data(), w.k(), y.data(), w.n(), m, 0, w.n(), memory);
  return y;
}

// The same by the emulation of the tiles; runs on any machine.
inline std::vector<float> emulated(const packed_matrix& packed, const std::vector<float>& x, int m) {
  std::vector<float> y(static_cast<size_t>(m) * static_cast<size_t>(packed.n()));
  amx_product call = amx_product_of(packed);
  call.m = m;
  call.n_begin = 0;
  call.n_end = packed.n();
  amx_emulate(call, x.data(), packed.k(), y.data(), packed.n());
  return y;
}

// Latent KV of `length` positions, every byte that is not written poisoned with NaN.
struct latent_cache {
  kv_layout layout;
  scratch memory;
  std::vector<const std::byte*> blocks;

  latent_cache(const compute& math, int rk, int dr, int length, const std::vector<float>& latents,
               const std::vector<float>& keys)
      : layout(math.layout_kv(rk, dr)) {
    const int count = (length + kv_layout::tokens - 1) / kv_layout::tokens;
    std::byte* begin = memory.take(sized(count) * layout.block_bytes);
    std::memset(begin, 0xff, sized(count) * layout.block_bytes);
    for (int t = 0; t < length; ++t)
      math.kv_write(layout, begin + sized(t / kv_layout::tokens) * layout.block_bytes, t % kv_layout::tokens,
                    latents.data() + t * rk, keys.data() + t * dr);
    for (int b = 0; b < count; ++b) blocks.push_back(begin + sized(b) * layout.block_bytes);
  }
};

// How the attention of one row is divided.
enum class division { none, heads, spans };

// Attention of rows of one sequence: q [rows, heads, rk + dr], out [rows, heads, rk] FP32.
inline std::vector<float> attention(const compute& math, const mla_shape& shape, const latent_cache& kv,
                                    const std::vector<float>& q, const std::vector<int>& lengths,
                                    division divided = division::none) {
  const mla_form form = math.form_of(shape);
  scratch query_memory, attended_memory, partial_memory, memory;
  std::byte* queries = query_memory.take(lengths.size() * form.query_bytes);
  std::byte* attended = attended_memory.take(lengths.size() * form.attended_bytes);
  std::vector<mla_row> rows;
  for (size_t i = 0; i < lengths.size(); ++i) {
    rows.push_back({queries + i * form.query_bytes, attended + i * form.attended_bytes, lengths[i]});
    math.mla_query(shape, q.data() + i * sized(shape.heads * (shape.rk + shape.dr)), 0, shape.heads,
                   queries + i * form.query_bytes);
  }
  if (divided == division::heads) {
    for (int head = 0; head < shape.heads; head += form.heads_together)
      math.mla_attend(shape, kv.layout, kv.blocks, rows, head, std::min(head + form.heads_together, shape.heads),
                      memory);
  } else if (divided == division::spans && form.span > 0) {
    for (const mla_row& row : rows) {
      const int spans = (row.length + form.span - 1) / form.span;
      std::byte* partials = partial_memory.take(sized(spans) * form.partial_bytes);
      // The first ones as one thread would, the others in any order.
      const int merged = std::min(spans, 2);
      for (int span = spans - 1; span >= merged; --span)
        math.mla_attend_span(shape, kv.layout, kv.blocks, row, {.index = span, .next = span - 1}, 0, shape.heads,
                             partials + sized(span) * form.partial_bytes, memory);
      for (int span = 0; span < merged; ++span)
        math.mla_attend_span(shape, kv.layout, kv.blocks, row, {.index = span, .merge = span > 0}, 0, shape.heads,
                             partials, memory);
      for (const int piece : {2, 0, 1}) math.mla_merge(shape, partials, merged, spans, row, piece, 3);
    }
  } else {
    math.mla_attend(shape, kv.layout, kv.blocks, rows, 0, shape.heads, memory);
  }
  std::vector<float> out(lengths.size() * sized(shape.heads * shape.rk));
  const bool bf16 = form.attended_bytes == sized(shape.heads * shape.rk) * 2;
  if (bf16)
    bf16_widen_row(reinterpret_cast<const uint16_t*>(attended), out.data(), static_cast<int>(out.size()));
  else
    std::memcpy(out.data(), attended, out.size() * sizeof(float));
  return out;
}

// The same for one row by the emulation, over a cache of profile amx_bf16's layout.
inline std::vector<float> emulated_attention(const mla_shape& shape, const latent_cache& kv,
                                             const std::vector<float>& q, int length) {
  std::vector<uint16_t> narrow(sized(shape.heads * shape.rk));
  amx_emulate_attention({shape.heads, shape.rk, shape.dr, shape.scale, kv.layout.chained}, kv.blocks.data(), q.data(),
                        length, narrow.data());
  std::vector<float> out(narrow.size());
  bf16_widen_row(narrow.data(), out.data(), static_cast<int>(out.size()));
  return out;
}

}  // namespace troupe::testing
