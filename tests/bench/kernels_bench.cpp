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

std::vector<float> numbers(size_t count) {
  std::vector<float> out(count);
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<float>(troupe::testing::t0_k("bench", i) - 128) / 512;
  return out;
}

bool available(profile wanted, benchmark::State& state) {
  if (wanted == profile::f32 || cpu_features::detect().amx_bf16) return true;
  state.SkipWithError("this CPU has no AMX");
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
  size_t next = 0;
  for (auto _ : state) {
    math->matmul(weights[next], x.data(), k, y.data(), n, m, 0, n, memory);
    benchmark::DoNotOptimize(y.data());
    next = (next + 1) % weights.size();
  }
  const double calls = static_cast<double>(state.iterations());
  state.counters["GFLOP/s"] = benchmark::Counter(2e-9 * m * n * k * calls, benchmark::Counter::kIsRate);
  state.counters["GB/s"] =
      benchmark::Counter(1e-9 * static_cast<double>(weights[0].bytes()) * calls, benchmark::Counter::kIsRate);
}

// V3's attention: 128 heads, latent 512, rope 64. Argument: length.
void mla_core(benchmark::State& state, profile wanted) {
  if (!available(wanted, state)) return;
  prepare_thread();
  const auto math = compute::make(wanted);
  const mla_shape shape{128, 512, 64, 0.135F};
  const kv_layout layout = math->layout_kv(shape.rk, shape.dr);
  const int length = static_cast<int>(state.range(0));
  const size_t count = static_cast<size_t>((length + kv_layout::tokens - 1) / kv_layout::tokens);
  std::vector<std::vector<std::byte>> storage(count, std::vector<std::byte>(layout.block_bytes));
  std::vector<const std::byte*> blocks;
  const auto latent = numbers(576);
  for (auto& block : storage) {
    for (int t = 0; t < kv_layout::tokens; ++t)
      math->kv_write(layout, block.data(), t, latent.data(), latent.data() + 512);
    blocks.push_back(block.data());
  }
  const auto q = numbers(128 * 576);
  std::vector<float> out(128 * 512);
  scratch memory;
  for (auto _ : state) {
    math->mla_core(shape, layout, q.data(), blocks, length, 0, shape.heads, out.data(), memory);
    benchmark::DoNotOptimize(out.data());
  }
  state.counters["GFLOP/s"] = benchmark::Counter(
      2e-9 * shape.heads * length * (576 + 512) * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
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
    for (const int m : {1, 8, 32, 64}) b->Args({m, copies});
}

BENCHMARK_CAPTURE(matmul, f32_weights_f32, profile::f32, weight_dtype::f32)->Apply(skinny);
BENCHMARK_CAPTURE(matmul, f32_weights_bf16, profile::f32, weight_dtype::bf16)->Apply(skinny);
BENCHMARK_CAPTURE(matmul, f32_weights_fp8, profile::f32, weight_dtype::fp8_e4m3)->Apply(skinny);
BENCHMARK_CAPTURE(matmul, amx_weights_bf16, profile::amx_bf16, weight_dtype::bf16)->Apply(skinny)->Args({512, 1});
BENCHMARK_CAPTURE(matmul, amx_weights_fp8, profile::amx_bf16, weight_dtype::fp8_e4m3)->Apply(skinny)->Args({512, 1});
BENCHMARK_CAPTURE(mla_core, f32, profile::f32)->Arg(256)->Arg(2048);
BENCHMARK_CAPTURE(mla_core, amx_bf16, profile::amx_bf16)->Arg(256)->Arg(2048);
BENCHMARK(rms_norm)->Arg(7168);
BENCHMARK(sample_vocabulary);
BENCHMARK(route_v3);

}  // namespace

BENCHMARK_MAIN();
