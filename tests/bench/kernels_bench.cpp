// Speed of the kernels on one thread: skinny products (decode's shapes) and absorbed attention.
//
// Weights are cycled through several copies larger than the caches where the name says "cold". Report CPU time;
// the machine is shared.
#include <benchmark/benchmark.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/compute.hpp"
#include "tests/t0.hpp"

namespace {

using namespace troupe::kernels;

constexpr int n = 4096, k = 1024;

// None is zero: in FP8 that would be a rare code, of which trained weights have few (amx_layout.hpp).
std::vector<float> numbers(size_t count) {
  std::vector<float> out(count);
  for (size_t i = 0; i < count; ++i) out[i] = (static_cast<float>(troupe::testing::t0_k("bench", i)) - 127.5F) / 512;
  return out;
}

bool available(profile wanted, benchmark::State& state) {
  if (wanted == profile::f32 || cpu_features::detect().amx_bf16()) return true;
  state.SkipWithError("this CPU cannot run profile amx_bf16");
  return false;
}

packed_matrix random_weight(const compute& math, weight_dtype dtype) {
  const size_t count = size_t{n} * k;
  const auto real = numbers(count);
  const std::vector<float> scales(size_t{n / 128} * (k / 128), 0.01F);
  if (dtype == weight_dtype::f32) return math.pack({dtype, real.data(), nullptr, n, k}, math.preferred_format());
  if (dtype == weight_dtype::bf16) {
    std::vector<uint16_t> narrow(count);
    bf16_round_row(real.data(), narrow.data(), static_cast<int>(count));
    return math.pack({dtype, narrow.data(), nullptr, n, k}, math.preferred_format());
  }
  std::vector<uint8_t> codes(count);
  for (size_t i = 0; i < count; ++i) codes[i] = e4m3_encode(real[i] * 100);
  return math.pack({dtype, codes.data(), scales.data(), n, k}, math.preferred_format());
}

// Arguments: rows, copies of the weight to cycle through.
void matmul(benchmark::State& state, profile wanted, weight_dtype dtype) {
  if (!available(wanted, state)) return;
  prepare_thread();
  const auto math = compute::make(wanted);
  const int m = static_cast<int>(state.range(0));
  std::vector<packed_matrix> weights;
  for (int64_t i = 0; i < state.range(1); ++i) weights.push_back(random_weight(*math, dtype));
  const auto x = numbers(static_cast<size_t>(m) * k);
  std::vector<float> y(static_cast<size_t>(m) * n);
  scratch memory;
  std::byte* input = memory.take(math->input_bytes(m, k));
  for (int i = 0; i < m; ++i) math->input_row(x.data() + size_t{k} * static_cast<size_t>(i), i, k, input);
  size_t next = 0;
  for (auto _ : state) {
    math->matmul(weights[next], {input, m, k}, y.data(), n, 0, n);
    benchmark::DoNotOptimize(y.data());
    next = (next + 1) % weights.size();
  }
  const double calls = static_cast<double>(state.iterations());
  state.counters["GFLOP/s"] = benchmark::Counter(2e-9 * m * n * k * calls, benchmark::Counter::kIsRate);
  state.counters["GB/s"] =
      benchmark::Counter(1e-9 * static_cast<double>(weights[0].bytes()) * calls, benchmark::Counter::kIsRate);
}

// Attention over a latent of 512 with rope 64. Arguments: heads, rows of one sequence, their length.
void mla_attend(benchmark::State& state, profile wanted) {
  if (!available(wanted, state)) return;
  prepare_thread();
  const auto math = compute::make(wanted);
  const mla_shape shape{static_cast<int>(state.range(0)), 512, 64, 0.135F};
  const kv_layout layout = math->layout_kv(shape.rk, shape.dr);
  const auto row_count = static_cast<size_t>(state.range(1));
  const int length = static_cast<int>(state.range(2));
  const size_t count = static_cast<size_t>((length + kv_layout::tokens - 1) / kv_layout::tokens);
  scratch cache_memory, query_memory, attended_memory, memory;
  std::byte* cache = cache_memory.take(count * layout.block_bytes);
  std::vector<const std::byte*> blocks;
  const auto latent = numbers(576);
  for (size_t b = 0; b < count; ++b) {
    std::byte* block = cache + b * layout.block_bytes;
    for (int t = 0; t < kv_layout::tokens; ++t) math->kv_write(layout, block, t, latent.data(), latent.data() + 512);
    blocks.push_back(block);
  }
  const mla_form form = math->form_of(shape);
  std::byte* queries = query_memory.take(row_count * form.query_bytes);
  std::byte* attended = attended_memory.take(row_count * form.attended_bytes);
  const auto q = numbers(static_cast<size_t>(shape.heads) * 576);
  std::vector<mla_row> rows;
  for (size_t i = 0; i < row_count; ++i) {
    math->mla_query(shape, q.data(), 0, shape.heads, queries + i * form.query_bytes);
    rows.push_back({queries + i * form.query_bytes, attended + i * form.attended_bytes, length});
  }
  for (auto _ : state) {
    math->mla_attend(shape, layout, blocks, rows, 0, shape.heads, memory);
    benchmark::DoNotOptimize(attended);
  }
  const double calls = static_cast<double>(state.iterations()) * static_cast<double>(row_count);
  state.counters["GFLOP/s"] =
      benchmark::Counter(2e-9 * shape.heads * length * (576 + 512) * calls, benchmark::Counter::kIsRate);
}

void rms_norm(benchmark::State& state) {
  const auto math = compute::make(profile::f32);
  const int width = static_cast<int>(state.range(0));
  const auto x = numbers(static_cast<size_t>(width));
  std::vector<float> out(x.size());
  for (auto _ : state) {
    math->rms_norm(x.data(), x.data(), out.data(), width, 1e-6F);
    benchmark::DoNotOptimize(out.data());
  }
}

void sample_vocabulary(benchmark::State& state) {
  const auto math = compute::make(profile::f32);
  auto logits = numbers(129280);
  for (float& logit : logits) logit *= 40;
  scratch memory;
  uint32_t index = 0;
  for (auto _ : state)
    benchmark::DoNotOptimize(sample(*math, logits.data(), 129280, {0.6F, 0.95F, 0}, 1, 0, index++, memory));
}

void route_v3(benchmark::State& state) {
  router_parameters p{256, 8, 4, 8, 2.5F};
  const auto z = numbers(256);
  routed_expert out[8];
  for (auto _ : state) {
    route(p, z.data(), z.data(), out);
    benchmark::DoNotOptimize(out);
  }
}

void skinny(benchmark::internal::Benchmark* b) {
  b->ArgNames({"M", "copies"});
  for (const int copies : {1, 24})
    for (const int m : {1, 2, 4, 8, 16, 32, 64}) b->Args({m, copies});
}

BENCHMARK_CAPTURE(matmul, f32_weights_f32, profile::f32, weight_dtype::f32)->Apply(skinny);
BENCHMARK_CAPTURE(matmul, f32_weights_bf16, profile::f32, weight_dtype::bf16)->Apply(skinny);
BENCHMARK_CAPTURE(matmul, f32_weights_fp8, profile::f32, weight_dtype::fp8_e4m3)->Apply(skinny);
BENCHMARK_CAPTURE(matmul, amx_weights_bf16, profile::amx_bf16, weight_dtype::bf16)->Apply(skinny)->Args({512, 1});
BENCHMARK_CAPTURE(matmul, amx_weights_fp8, profile::amx_bf16, weight_dtype::fp8_e4m3)->Apply(skinny)->Args({512, 1});
// Heads, rows, length: V3 decoding, a small model decoding, and its prompts.
void attention_shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"heads", "rows", "length"});
  b->Args({128, 1, 256})->Args({128, 1, 2048})->Args({16, 1, 256})->Args({16, 1, 2048})->Args({16, 8, 256});
  b->Args({16, 8, 2048});
}
BENCHMARK_CAPTURE(mla_attend, f32, profile::f32)->Apply(attention_shapes);
BENCHMARK_CAPTURE(mla_attend, amx_bf16, profile::amx_bf16)->Apply(attention_shapes);
BENCHMARK(rms_norm)->Arg(7168);
BENCHMARK(sample_vocabulary);
BENCHMARK(route_v3);

}  // namespace

BENCHMARK_MAIN();
