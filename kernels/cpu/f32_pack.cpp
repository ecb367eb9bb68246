#include "kernels/cpu/f32_pack.hpp"

#include <algorithm>

#include "kernels/cpu/transpose.hpp"

namespace troupe::kernels {
namespace {

constexpr size_t element_bytes(weight_storage storage) {
  switch (storage) {
    case weight_storage::f32: return 4;
    case weight_storage::bf16: return 2;
    case weight_storage::e4m3: return 1;
    case weight_storage::bf16_coded: break;  // for tiles alone
  }
  return 4;
}

// BF16 and FP8 keep their size and widen in registers; NaN codes exist only in broken files, which then pay with size.
weight_storage storage_for(const weight_reader& weight) {
  switch (weight.dtype()) {
    case weight_dtype::f32: return weight_storage::f32;
    case weight_dtype::bf16: return weight_storage::bf16;
    case weight_dtype::fp8_e4m3: return weight.has_nan_code() ? weight_storage::f32 : weight_storage::e4m3;
  }
  return weight_storage::f32;
}

// Fills panels with read(column, depth).
template <class Element, class Read>
void fill_panels(const weight_reader& weight, std::byte* body, Read read) {
  auto* out = reinterpret_cast<Element*>(body);
  for (int panel = 0; panel < weight.columns(); panel += lane_count) {
    const int width = std::min(lane_count, weight.columns() - panel);
    for (int i = 0; i < weight.depth(); ++i, out += lane_count) {
      for (int l = 0; l < width; ++l) out[l] = read(panel + l, i);
      for (int l = width; l < lane_count; ++l) out[l] = Element{0};
    }
  }
}

// The same for BF16 that lies straight: a transpose of pairs of inputs, whose halves then part.
void fill_bf16_panels(const weight_reader& weight, std::byte* body) {
  constexpr int pairs = 16;  // of inputs in a step
  using elements [[gnu::vector_size(16)]] = uint16_t;
  auto* out = reinterpret_cast<uint16_t*>(body);
  const int64_t stride = int64_t{weight.depth()} * 2;
  for (int panel = 0; panel < weight.columns(); panel += lane_count) {
    const int width = std::min(lane_count, weight.columns() - panel);
    int i = 0;
    for (; width == lane_count && i + 2 * pairs <= weight.depth(); i += 2 * pairs) {
      const std::byte* rows = weight.row(panel) + i * int64_t{2};
      for (int l = 0; l < lane_count; ++l) __builtin_prefetch(rows + l * stride + 512);
      alignas(64) std::byte tile[pairs * 64];
      transpose_words(rows, stride, tile);
      for (int pair = 0; pair < pairs; ++pair, out += 2 * lane_count) {
        elements v[4];
        std::memcpy(v, tile + pair * 64, sizeof v);
        const elements parted[4] = {__builtin_shufflevector(v[0], v[1], 0, 2, 4, 6, 8, 10, 12, 14),
                                    __builtin_shufflevector(v[2], v[3], 0, 2, 4, 6, 8, 10, 12, 14),
                                    __builtin_shufflevector(v[0], v[1], 1, 3, 5, 7, 9, 11, 13, 15),
                                    __builtin_shufflevector(v[2], v[3], 1, 3, 5, 7, 9, 11, 13, 15)};
        std::memcpy(out, parted, sizeof parted);
      }
    }
    for (; i < weight.depth(); ++i, out += lane_count)
      for (int l = 0; l < width; ++l) out[l] = weight.stored<uint16_t>(panel + l, i);
  }
}

void fill_scales(const weight_reader& weight, float* out) {
  for (int panel = 0; panel < weight.columns(); panel += lane_count)
    for (int i = 0; i < weight.depth(); i += scale_block) *out++ = weight.scale(panel, i);
}

}  // namespace

packed_matrix empty_f32(weight_storage storage, int columns, int depth) {
  const size_t panels = static_cast<size_t>((columns + lane_count - 1) / lane_count);
  const size_t blocks = static_cast<size_t>((depth + scale_block - 1) / scale_block);
  packed_parts parts{static_cast<uint32_t>(storage), 0, 0};
  if (storage == weight_storage::e4m3) parts.body_offset = round_up_to_line(panels * blocks * sizeof(float));
  const size_t body = panels * static_cast<size_t>(depth) * lane_count * element_bytes(storage);
  return make_packed(weight_format::f32, columns, depth, parts.body_offset + body, parts);
}

packed_matrix pack_f32(const weight_reader& weight) {
  const weight_storage storage = storage_for(weight);
  const bool scaled = storage == weight_storage::e4m3;
  packed_matrix packed = empty_f32(storage, weight.columns(), weight.depth());
  const packed_parts& parts = packed.parts();
  std::byte* data = packed.mutable_data();
  std::byte* panels_at = data + parts.body_offset;
  if (scaled) {
    fill_scales(weight, reinterpret_cast<float*>(data + parts.scales_offset));
    fill_panels<uint8_t>(weight, panels_at, [&](int c, int i) { return weight.stored<uint8_t>(c, i); });
  } else if (storage == weight_storage::bf16 && !weight.transposed()) {
    fill_bf16_panels(weight, panels_at);
  } else if (storage == weight_storage::bf16) {
    fill_panels<uint16_t>(weight, panels_at, [&](int c, int i) { return weight.stored<uint16_t>(c, i); });
  } else if (weight.dtype() == weight_dtype::fp8_e4m3) {
    fill_panels<float>(weight, panels_at,
                       [&](int c, int i) { return e4m3_decode(weight.stored<uint8_t>(c, i)) * weight.scale(c, i); });
  } else {
    fill_panels<float>(weight, panels_at, [&](int c, int i) { return weight.stored<float>(c, i); });
  }
  return packed;
}

f32_product f32_product_of(const packed_matrix& packed) {
  const packed_parts& parts = packed.parts();
  f32_product product{};
  product.storage = static_cast<weight_storage>(parts.storage);
  product.panels = packed.data() + parts.body_offset;
  if (product.storage == weight_storage::e4m3)
    product.scales = reinterpret_cast<const float*>(packed.data() + parts.scales_offset);
  product.n = packed.n();
  product.k = packed.k();
  return product;
}

}  // namespace troupe::kernels
