// Row-wise kernels over 16 lanes: norms, activations, maxima and sums of exponentials. `V` comes from
// an unnamed namespace (see cpu/exp.hpp).
#pragma once

#include "kernels/cpu/exp.hpp"
#include "kernels/cpu/lanes.hpp"

namespace troupe::kernels {

// Calls body(offset, count) for each 16 lanes of `width`, the last perhaps fewer.
template <class V, class Body>
[[gnu::always_inline]] inline void for_lanes(int width, Body body) {
  int i = 0;
  for (; i + lane_count <= width; i += lane_count) body(i, lane_count);
  if (i < width) body(i, width - i);
}

// RMSNorm, MODEL.md 6.1, all in FP32.
template <class V>
void rms_norm(const float* x, const float* weight, float* out, int width, float eps) {
  auto squares = V::zero();
  for_lanes<V>(width, [&](int i, int count) {
    const auto v = V::load_part(x + i, count);
    squares = V::fma(v, v, squares);
  });
  const float mean = V::reduce_add(squares) / static_cast<float>(width);
  const auto inverse = V::broadcast(1.0F / __builtin_sqrtf(mean + eps));
  for_lanes<V>(width, [&](int i, int count) {
    const auto normal = V::mul(V::load_part(x + i, count), inverse);
    V::store_part(out + i, V::mul(normal, V::load_part(weight + i, count)), count);
  });
}

// 1 + exp(-z), the denominator of the logistic function.
template <class V>
[[gnu::always_inline]] inline typename V::reg logistic_denominator(typename V::reg z) {
  return V::add(V::broadcast(1.0F), exp_lanes<V>(V::sub(V::zero(), z)));
}

template <class V>
void silu_mul(const float* gate, const float* up, float* out, int width) {
  for_lanes<V>(width, [&](int i, int count) {
    const auto g = V::load_part(gate + i, count);
    const auto silu = V::div(g, logistic_denominator<V>(g));
    V::store_part(out + i, V::mul(silu, V::load_part(up + i, count)), count);
  });
}

template <class V>
void sigmoid(const float* z, float* out, int count) {
  for_lanes<V>(count, [&](int i, int lanes) {
    const auto denominator = logistic_denominator<V>(V::load_part(z + i, lanes));
    V::store_part(out + i, V::div(V::broadcast(1.0F), denominator), lanes);
  });
}

template <class V>
void axpy(float factor, const float* x, float* y, int width) {
  const auto f = V::broadcast(factor);
  for_lanes<V>(width, [&](int i, int count) {
    V::store_part(y + i, V::fma(V::load_part(x + i, count), f, V::load_part(y + i, count)), count);
  });
}

template <class V>
void bf16_round_row(const float* x, uint16_t* out, int count) {
  int i = 0;
  for (; i + lane_count <= count; i += lane_count) V::store_bf16(out + i, V::load(x + i));
  if (i == count) return;
  uint16_t last[lane_count];
  V::store_bf16(last, V::load_part(x + i, count - i));
  for (int l = 0; i + l < count; ++l) out[i + l] = last[l];
}

// The BF16 values that are left of a row, zeros beyond.
template <class V>
[[gnu::always_inline]] inline typename V::reg load_bf16_part(const uint16_t* p, int count) {
  if (count >= lane_count) return V::load_bf16(p);
  uint16_t full[lane_count] = {};
  for (int l = 0; l < count; ++l) full[l] = p[l];
  return V::load_bf16(full);
}

template <class V>
void bf16_widen_row(const uint16_t* x, float* out, int count) {
  for_lanes<V>(count, [&](int i, int lanes) { V::store_part(out + i, load_bf16_part<V>(x + i, lanes), lanes); });
}

template <class V>
void combine_row(const std::byte* const* outputs, bool bf16, const float* gates, int stride, int count,
                 const float* shared, float* x, int width) {
  for_lanes<V>(width, [&](int i, int lanes) {
    auto sum = V::zero();
    for (int e = 0; e < count; ++e) {
      const auto output = bf16 ? load_bf16_part<V>(reinterpret_cast<const uint16_t*>(outputs[e]) + i, lanes)
                               : V::load_part(reinterpret_cast<const float*>(outputs[e]) + i, lanes);
      sum = V::fma(output, V::broadcast(gates[e * stride]), sum);
    }
    sum = V::add(sum, V::load_part(shared + i, lanes));
    V::store_part(x + i, V::add(V::load_part(x + i, lanes), sum), lanes);
  });
}

// Independent multiply-adds, as many as hide each other's latency.
template <class V>
double peak_work(int rounds) {
  constexpr int chains = 10;
  typename V::reg sums[chains];
  for (auto& sum : sums) sum = V::zero();
  const auto x = V::broadcast(1.0F), y = V::broadcast(1e-30F);
  for (int round = 0; round < rounds; ++round)
#pragma GCC unroll 10
    for (int i = 0; i < chains; ++i) sums[i] = V::fma(x, y, sums[i]);
  float total = 0;
  for (const auto& sum : sums) total += V::reduce_add(sum);
  // The total is used, so that nothing is left out; it is never negative.
  return total < 0 ? 0 : 2.0 * rounds * chains * lane_count;
}

// Four streams, 2 KiB of each in turn.
template <class V>
uint32_t read_through(const std::byte* memory, size_t bytes) {
  constexpr size_t streams = 4, line = lane_count * sizeof(float), visit = 2048, ahead = 1024;
  const size_t part = bytes / streams / visit * visit;
  auto sum = V::broadcast_int(0);
  const auto read = [&](size_t begin, size_t end) {
    for (size_t at = begin; at + line <= end; at += line) {
      __builtin_prefetch(memory + at + ahead);
      sum = V::add(sum, V::bits(V::load(reinterpret_cast<const float*>(memory + at))));
    }
  };
  for (size_t at = 0; at < part; at += visit)
    for (size_t stream = 0; stream < streams; ++stream) read(stream * part + at, stream * part + at + visit);
  read(streams * part, bytes);
  float lanes[lane_count];
  V::store(lanes, V::value(sum));
  uint32_t total = 0;
  for (const float lane : lanes) total += __builtin_bit_cast(uint32_t, lane);
  return total;
}

template <class V>
float maximum(const float* x, int count) {
  auto lanes = V::broadcast(-__builtin_inff());
  int i = 0;
  // The running maximum comes second: a comparison with NaN is false and keeps it.
  for (; i + lane_count <= count; i += lane_count) lanes = V::max(V::load(x + i), lanes);
  float best = V::reduce_max(lanes);
  for (; i < count; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

template <class V>
int first_equal(const float* x, int count, float value) {
  int i = 0;
  const auto wanted = V::broadcast(value);
  while (i + lane_count <= count && !V::any_equal(V::load(x + i), wanted)) i += lane_count;
  for (; i < count; ++i)
    if (x[i] == value) return i;
  return 0;
}

template <class V>
double sum_exp(const float* x, int count, float shift) {
  constexpr int block = 512;
  const auto s = V::broadcast(shift);
  double total = 0;
  for (int begin = 0; begin < count; begin += block) {
    const int size = count - begin < block ? count - begin : block;
    auto sums = V::zero();
    for_lanes<V>(size, [&](int i, int lanes) {
      const auto e = exp_lanes<V>(V::sub(V::load_part(x + begin + i, lanes), s));
      sums = V::add(sums, V::keep(e, lanes));
    });
    total += static_cast<double>(V::reduce_add(sums));
  }
  return total;
}

template <class V>
void exp_scaled(const float* x, float shift, float divisor, float* out, int count) {
  const auto s = V::broadcast(shift);
  const auto d = V::broadcast(divisor);
  for_lanes<V>(count, [&](int i, int lanes) {
    const auto v = V::div(V::sub(V::load_part(x + i, lanes), s), d);
    V::store_part(out + i, exp_lanes<V>(v), lanes);
  });
}

}  // namespace troupe::kernels
