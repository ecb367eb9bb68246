// Profile f32 in plain C++: the reference that defines the others' bits.
#include "kernels/cpu/f32_table.hpp"

namespace troupe::kernels {
namespace {

// 16 lanes as an array; every operation is the same scalar operation on each lane.
struct scalar {
  struct reg {
    float v[lane_count];
  };
  struct ints {
    uint32_t v[lane_count];
  };
  static constexpr int many_rows = 4, panels_of_many = 1;
  static constexpr int few_rows = 4, panels_of_few = 1;
  static constexpr int attention_heads = 2;

  template <class Operation>
  static reg each(Operation operation) {
    reg out;
    for (int l = 0; l < lane_count; ++l) out.v[l] = operation(l);
    return out;
  }
  template <class Operation>
  static ints each_int(Operation operation) {
    ints out;
    for (int l = 0; l < lane_count; ++l) out.v[l] = operation(l);
    return out;
  }

  static reg broadcast(float x) {
    return each([&](int) { return x; });
  }
  static reg zero() { return broadcast(0); }
  static reg load(const float* p) {
    return each([&](int l) { return p[l]; });
  }
  static reg load_part(const float* p, int count) {
    return each([&](int l) { return l < count ? p[l] : 0.0F; });
  }
  static reg load_bf16(const uint16_t* p) {
    return each([&](int l) { return __builtin_bit_cast(float, uint32_t{p[l]} << 16); });
  }
  // Requires: no NaN code (the packer keeps those weights as FP32). See e4m3_decode.
  static reg load_e4m3(const uint8_t* p) {
    return each([&](int l) {
      const uint32_t code = p[l];
      const float magnitude = __builtin_bit_cast(float, (code & 0x7fU) << 20) * 0x1p120F;
      return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, magnitude) | (code & 0x80U) << 24);
    });
  }
  static void store_bf16(uint16_t* p, reg a) {
    for (int l = 0; l < lane_count; ++l) {
      const uint32_t bits = __builtin_bit_cast(uint32_t, a.v[l]);
      const bool nan = (bits & 0x7fffffffU) > 0x7f800000U;
      const uint32_t rounded = nan ? (bits >> 16) | 0x40U : (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
      p[l] = static_cast<uint16_t>(rounded);
    }
  }
  static void store(float* p, reg a) {
    for (int l = 0; l < lane_count; ++l) p[l] = a.v[l];
  }
  static void store_part(float* p, reg a, int count) {
    for (int l = 0; l < lane_count && l < count; ++l) p[l] = a.v[l];
  }
  static reg keep(reg a, int count) {
    return each([&](int l) { return l < count ? a.v[l] : 0.0F; });
  }

  static reg add(reg a, reg b) {
    return each([&](int l) { return a.v[l] + b.v[l]; });
  }
  static reg sub(reg a, reg b) {
    return each([&](int l) { return a.v[l] - b.v[l]; });
  }
  static reg mul(reg a, reg b) {
    return each([&](int l) { return a.v[l] * b.v[l]; });
  }
  static reg div(reg a, reg b) {
    return each([&](int l) { return a.v[l] / b.v[l]; });
  }
  static reg fma(reg a, reg b, reg c) {
    return each([&](int l) { return __builtin_fmaf(a.v[l], b.v[l], c.v[l]); });
  }
  // As the vector instructions do: the second operand if either is NaN.
  static reg min(reg a, reg b) {
    return each([&](int l) { return a.v[l] < b.v[l] ? a.v[l] : b.v[l]; });
  }
  static reg max(reg a, reg b) {
    return each([&](int l) { return a.v[l] > b.v[l] ? a.v[l] : b.v[l]; });
  }

  static float reduce_add(reg a) {
    for (int step = 8; step > 0; step /= 2)
      for (int l = 0; l < step; ++l) a.v[l] += a.v[l + step];
    return a.v[0];
  }
  static float reduce_max(reg a) {
    float best = a.v[0];
    for (int l = 1; l < lane_count; ++l) best = a.v[l] > best ? a.v[l] : best;
    return best;
  }
  static void reduce_add_2x2(reg a, reg b, reg c, reg d, float* ab, float* cd) {
    ab[0] = reduce_add(a);
    ab[1] = reduce_add(b);
    cd[0] = reduce_add(c);
    cd[1] = reduce_add(d);
  }
  static bool any_equal(reg a, reg b) {
    for (int l = 0; l < lane_count; ++l)
      if (a.v[l] == b.v[l]) return true;
    return false;
  }

  static ints broadcast_int(uint32_t x) {
    return each_int([&](int) { return x; });
  }
  static ints bits(reg a) {
    return each_int([&](int l) { return __builtin_bit_cast(uint32_t, a.v[l]); });
  }
  static reg value(ints a) {
    return each([&](int l) { return __builtin_bit_cast(float, a.v[l]); });
  }
  static ints add(ints a, ints b) {
    return each_int([&](int l) { return a.v[l] + b.v[l]; });
  }
  static ints sub(ints a, ints b) {
    return each_int([&](int l) { return a.v[l] - b.v[l]; });
  }
  static ints halve(ints a) {
    return each_int([&](int l) { return static_cast<uint32_t>(static_cast<int32_t>(a.v[l]) >> 1); });
  }
  static ints shift_to_exponent(ints a) {
    return each_int([&](int l) { return a.v[l] << 23; });
  }
};

}  // namespace

const lane_kernels& scalar_lanes() {
  static constexpr lane_kernels table = make_lane_kernels<scalar>(isa::scalar);
  return table;
}

}  // namespace troupe::kernels
