#include "kernels/cpu/amx_pack.hpp"

#include <algorithm>

#include "kernels/cpu/transpose.hpp"

namespace troupe::kernels {
namespace {

// Fills tiles with read(column, depth) at position(column in tile, depth in tile). The memory is already zero.
template <class Element, class Position, class Read>
void fill_tiles(const weight_reader& weight, std::byte* body, Position position, Read read) {
  const int steps = tile_steps(weight.depth());
  for (int column = 0; column < weight.columns(); column += tile_columns) {
    const int tile_column = column / tile_columns;
    const int width = std::min(tile_columns, weight.columns() - column);
    for (int step = 0; step < steps; ++step) {
      const int64_t tile = (int64_t{tile_column / 2} * steps + step) * 2 + tile_column % 2;
      auto* out = reinterpret_cast<Element*>(body) + tile * tile_elements;
      const int depth = std::min(tile_depth, weight.depth() - step * tile_depth);
      for (int c = 0; c < width; ++c)
        for (int i = 0; i < depth; ++i) out[position(c, i)] = read(column + c, step * tile_depth + i);
    }
  }
}

// The same for BF16 that lies straight, a pair of tiles at a time so that the output is one stream. A row's two
// neighbouring inputs are one word of the tile.
void fill_bf16_tiles(const weight_reader& weight, std::byte* body) {
  constexpr size_t tile_bytes = tile_elements * sizeof(uint16_t);
  constexpr int ahead = 4 * tile_depth;  // how far the rows, each a stream of its own, are prefetched
  const int steps = tile_steps(weight.depth());
  const int64_t stride = int64_t{weight.depth()} * 2;
  for (int column = 0; column < weight.columns(); column += 2 * tile_columns)
    for (int step = 0; step < steps; ++step)
      for (int first = column; first < column + 2 * tile_columns; first += tile_columns, body += tile_bytes) {
        const int width = std::min(tile_columns, weight.columns() - first);
        const int depth = std::min(tile_depth, weight.depth() - step * tile_depth);
        if (width == tile_columns && depth == tile_depth) {
          const std::byte* rows = weight.row(first) + step * tile_depth * 2;
          for (int c = 0; c < tile_columns; ++c) __builtin_prefetch(rows + c * stride + ahead * 2);
          transpose_words(rows, stride, body);
          continue;
        }
        auto* out = reinterpret_cast<uint16_t*>(body);
        for (int c = 0; c < width; ++c)
          for (int i = 0; i < depth; ++i)
            out[bf16_position(c, i)] = weight.stored<uint16_t>(first + c, step * tile_depth + i);
      }
}

void fill_scales(const weight_reader& weight, float* out) {
  const int blocks = (weight.depth() + scale_block - 1) / scale_block;
  for (int column = 0; column < weight.columns(); column += tile_columns)
    for (int b = 0; b < blocks; ++b) *out++ = weight.scale(column, b * scale_block);
}

}  // namespace

packed_matrix empty_amx(weight_storage storage, int columns, int depth) {
  const bool scaled = storage == weight_storage::e4m3;
  const auto pairs = static_cast<size_t>((columns + 2 * tile_columns - 1) / (2 * tile_columns));
  const auto blocks = static_cast<size_t>((depth + scale_block - 1) / scale_block);
  packed_parts parts{static_cast<uint32_t>(storage), 0, 0};
  if (scaled) parts.body_offset = round_up_to_line(2 * pairs * blocks * sizeof(float));
  const size_t elements = pairs * static_cast<size_t>(tile_steps(depth)) * 2 * tile_elements;
  const size_t bytes = parts.body_offset + elements * (scaled ? sizeof(uint8_t) : sizeof(uint16_t));
  return make_packed(weight_format::amx_bf16, columns, depth, bytes, parts);
}

packed_matrix pack_amx(const weight_reader& weight) {
  const bool scaled = weight.dtype() == weight_dtype::fp8_e4m3;
  packed_matrix packed =
      empty_amx(scaled ? weight_storage::e4m3 : weight_storage::bf16, weight.columns(), weight.depth());
  const packed_parts& parts = packed.parts();
  std::byte* data = packed.mutable_data();
  std::byte* body = data + parts.body_offset;
  switch (weight.dtype()) {
    case weight_dtype::fp8_e4m3:
      fill_scales(weight, reinterpret_cast<float*>(data + parts.scales_offset));
      fill_tiles<uint8_t>(weight, body, e4m3_position, [&](int c, int i) { return weight.stored<uint8_t>(c, i); });
      break;
    case weight_dtype::bf16:
      if (weight.transposed())
        fill_tiles<uint16_t>(weight, body, bf16_position, [&](int c, int i) { return weight.stored<uint16_t>(c, i); });
      else
        fill_bf16_tiles(weight, body);
      break;
    case weight_dtype::f32:
      fill_tiles<uint16_t>(weight, body, bf16_position,
                           [&](int c, int i) { return bf16_round(weight.stored<float>(c, i)); });
      break;
  }
  return packed;
}

amx_product amx_product_of(const packed_matrix& packed) {
  const packed_parts& parts = packed.parts();
  amx_product product{};
  product.storage = static_cast<weight_storage>(parts.storage);
  product.body = packed.data() + parts.body_offset;
  if (product.storage == weight_storage::e4m3)
    product.scales = reinterpret_cast<const float*>(packed.data() + parts.scales_offset);
  product.n = packed.n();
  product.k = packed.k();
  return product;
}

}  // namespace troupe::kernels
