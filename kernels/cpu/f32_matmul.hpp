// The f32 matrix product over 16-column panels.
//
// Every output is one chain of fused multiply-adds over ascending k that starts from 0, so the blocking
// below (rows x panels kept in registers) is free to differ between instruction sets and row counts
// without changing a bit. `V` comes from an unnamed namespace (see cpu/exp.hpp).
#pragma once

#include "kernels/cpu/lanes.hpp"

namespace troupe::kernels {

template <class V>
struct f32_panels {
  using element = float;
  static constexpr bool scaled = false;
  [[gnu::always_inline]] static typename V::reg load(const element* p) { return V::load(p); }
};

template <class V>
struct bf16_panels {
  using element = uint16_t;
  static constexpr bool scaled = false;
  [[gnu::always_inline]] static typename V::reg load(const element* p) { return V::load_bf16(p); }
};

template <class V>
struct e4m3_panels {
  using element = uint8_t;
  static constexpr bool scaled = true;  // the weight is decode(code) * scale, rounded to FP32
  [[gnu::always_inline]] static typename V::reg load(const element* p) { return V::load_e4m3(p); }
};

// Rows [row, row + Rows) of the panels [panel, panel + Panels).
template <class V, class Source, int Rows, int Panels>
void multiply_block(const f32_product& call, int row, int panel) {
  using element = typename Source::element;
  using reg = typename V::reg;
  const int k = call.k;
  const int scale_blocks = (k + scale_block - 1) / scale_block;
  const ptrdiff_t panel_stride = ptrdiff_t{k} * lane_count;
  const element* w = reinterpret_cast<const element*>(call.panels) + panel * panel_stride;
  const float* x = call.x + row * call.ldx;
  constexpr ptrdiff_t ahead = 2048 / sizeof(element);  // bytes to prefetch ahead in each panel

  reg sums[Rows][Panels];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 16
    for (int p = 0; p < Panels; ++p) sums[r][p] = V::zero();

  for (int begin = 0; begin < k;) {
    const int end = Source::scaled && k - begin > scale_block ? begin + scale_block : k;
    reg scale[Panels];
    if constexpr (Source::scaled) {
#pragma GCC unroll 16
      for (int p = 0; p < Panels; ++p)
        scale[p] = V::broadcast(call.scales[ptrdiff_t{panel + p} * scale_blocks + begin / scale_block]);
    }
    for (int i = begin; i < end; ++i) {
      reg b[Panels];
#pragma GCC unroll 16
      for (int p = 0; p < Panels; ++p) {
        const element* at = w + p * panel_stride + ptrdiff_t{i} * lane_count;
        __builtin_prefetch(at + ahead);
        b[p] = Source::load(at);
        if constexpr (Source::scaled) b[p] = V::mul(b[p], scale[p]);
      }
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        const reg a = V::broadcast(x[r * call.ldx + i]);
#pragma GCC unroll 16
        for (int p = 0; p < Panels; ++p) sums[r][p] = V::fma(a, b[p], sums[r][p]);
      }
    }
    begin = end;
  }

  for (int p = 0; p < Panels; ++p) {
    const int column = (panel + p) * lane_count;
    const int width = call.n - column < lane_count ? call.n - column : lane_count;
    for (int r = 0; r < Rows; ++r) V::store_part(call.y + (row + r) * call.ldy + column, sums[r][p], width);
  }
}

// Panels [panel, panel_end) for `Rows` rows.
template <class V, class Source, int Rows>
void multiply_rows(const f32_product& call, int row, int panel, int panel_end) {
  constexpr int together = Rows <= V::few_rows ? V::panels_of_few : V::panels_of_many;
  for (; panel + together <= panel_end; panel += together) multiply_block<V, Source, Rows, together>(call, row, panel);
  for (; panel < panel_end; ++panel) multiply_block<V, Source, Rows, 1>(call, row, panel);
}

// Sends a remainder of `rows` <= Rows rows to the block made for exactly that many.
template <class V, class Source, int Rows>
void multiply_remainder(const f32_product& call, int rows, int row, int panel, int panel_end) {
  if (rows == Rows) {
    multiply_rows<V, Source, Rows>(call, row, panel, panel_end);
  } else if constexpr (Rows > 1) {
    multiply_remainder<V, Source, Rows - 1>(call, rows, row, panel, panel_end);
  }
}

template <class V, class Source>
void multiply(const f32_product& call) {
  const int panel_end = (call.n_end + lane_count - 1) / lane_count;
  // A few panels at a time pass all rows, so that they are read from memory once and then from the cache.
  constexpr int group = V::panels_of_few > V::panels_of_many ? V::panels_of_few : V::panels_of_many;
  for (int panel = call.n_begin / lane_count; panel < panel_end; panel += group) {
    const int stop = panel + group < panel_end ? panel + group : panel_end;
    int row = 0;
    for (; row + V::many_rows <= call.m; row += V::many_rows)
      multiply_rows<V, Source, V::many_rows>(call, row, panel, stop);
    if (row < call.m) multiply_remainder<V, Source, V::many_rows>(call, call.m - row, row, panel, stop);
  }
}

template <class V>
void matmul(const f32_product& call) {
  switch (call.storage) {
    case weight_storage::f32: return multiply<V, f32_panels<V>>(call);
    case weight_storage::bf16: return multiply<V, bf16_panels<V>>(call);
    case weight_storage::e4m3: return multiply<V, e4m3_panels<V>>(call);
    case weight_storage::bf16_coded: return;  // for tiles alone; no packer makes one here
  }
}

}  // namespace troupe::kernels
