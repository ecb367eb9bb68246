#include "kernels/cpu/amx_pack.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "kernels/cpu/amx_coding.hpp"
#include "kernels/cpu/transpose.hpp"

namespace troupe::kernels {
namespace {

// Brings a BF16 tile from the straight into the chained order of inputs: every two rows of 16 pairs.
void chain_tile(uint16_t* tile) {
  using words [[gnu::vector_size(64)]] = uint32_t;
  for (int row = 0; row < tile_rows; row += 2, tile += 2 * tile_depth) {
    words first, second;
    std::memcpy(&first, tile, sizeof first);
    std::memcpy(&second, tile + tile_depth, sizeof second);
    const words even = first << 16 | (second & 0xffff), odd = (first & 0xffff0000) | second >> 16;
    std::memcpy(tile, &even, sizeof even);
    std::memcpy(tile + tile_depth, &odd, sizeof odd);
  }
}

// Makes BF16 tiles of a weight. `padding` stands where the weight has no element.
class tile_maker {
 public:
  tile_maker(const weight_reader& weight, uint16_t padding, bool chained = false)
      : weight_(weight), padding_(padding), chained_(chained) {}

  // The tile of columns [column, column + 16) at a step: out [tile_elements], in tile order.
  void make(int column, int step, uint16_t* out) const {
    make_straight(column, step, out);
    if (chained_) chain_tile(out);
  }

  uint16_t element(int column, int at) const {
    return weight_.dtype() == weight_dtype::f32 ? bf16_round(weight_.stored<float>(column, at))
                                                : weight_.stored<uint16_t>(column, at);
  }

 private:
  void make_straight(int column, int step, uint16_t* out) const {
    constexpr int ahead = 4 * tile_depth;  // how far the rows, each a stream of its own, are prefetched
    const int width = std::clamp(weight_.columns() - column, 0, tile_columns);
    const int depth = std::min(tile_depth, weight_.depth() - step * tile_depth);
    if (width == tile_columns && depth == tile_depth && weight_.dtype() == weight_dtype::bf16 &&
        !weight_.transposed()) {
      const int64_t stride = int64_t{weight_.depth()} * 2;
      const std::byte* rows = weight_.row(column) + step * tile_depth * 2;
      for (int c = 0; c < tile_columns; ++c) __builtin_prefetch(rows + c * stride + ahead * 2);
      transpose_words(rows, stride, reinterpret_cast<std::byte*>(out));  // two neighbouring inputs are a word
      return;
    }
    std::fill_n(out, tile_elements, padding_);
    for (int c = 0; c < width; ++c)
      for (int i = 0; i < depth; ++i) out[bf16_position(c, i)] = element(column + c, step * tile_depth + i);
  }

  const weight_reader& weight_;
  uint16_t padding_;
  bool chained_;
};

// Calls each(column, step) for the tiles of a weight in the order of its body, until one returns false.
template <class Each>
bool each_tile(const weight_reader& weight, Each each) {
  const int steps = tile_steps(weight.depth());
  for (int panel = 0; panel < weight.columns(); panel += 2 * tile_columns)
    for (int step = 0; step < steps; ++step)
      for (int column = panel; column < panel + 2 * tile_columns; column += tile_columns)
        if (!each(column, step)) return false;
  return true;
}

// The marks are already zero.
void fill_e4m3_tiles(const weight_reader& weight, packed_matrix& packed) {
  const amx_product body = amx_product_of(packed);
  auto* out = reinterpret_cast<uint8_t*>(packed.mutable_data() + packed.parts().body_offset);
  each_tile(weight, [&](int column, int step) {
    const int width = std::min(tile_columns, weight.columns() - column);
    const int depth = std::min(tile_depth, weight.depth() - step * tile_depth);
    bool rare = false;
    std::fill_n(out, tile_elements, padding_code);
    for (int c = 0; c < width; ++c)
      for (int i = 0; i < depth; ++i) {
        const auto code = weight.stored<uint8_t>(column + c, step * tile_depth + i);
        rare |= is_rare(code);
        out[e4m3_position(c, body.place(i))] = code;
      }
    auto* marks = const_cast<uint64_t*>(body.rare_tiles(column / tile_columns));
    if (rare) marks[step / 64] |= uint64_t{1} << (step % 64);
    out += tile_elements;
    return true;
  });
}

packed_matrix pack_bf16(const weight_reader& weight, bool chained) {
  packed_matrix packed = empty_amx({weight_storage::bf16, chained}, weight.columns(), weight.depth());
  const tile_maker tiles(weight, 0, chained);
  auto* out = reinterpret_cast<uint16_t*>(packed.mutable_data());
  each_tile(weight, [&](int column, int step) {
    tiles.make(column, step, out);
    out += tile_elements;
    return true;
  });
  return packed;
}

// The table for the upper bytes of a weight, from a sample of its elements.
upper_byte_table table_of(const weight_reader& weight) {
  constexpr int most = 128;  // columns, and elements of each
  std::array<uint32_t, 256> counts{};
  const tile_maker tiles(weight, 0);
  const int columns = std::min(most, weight.columns()), inputs = std::min(most, weight.depth());
  for (int c = 0; c < columns; ++c)
    for (int i = 0; i < inputs; ++i) {
      // The inputs of one column lie between those of the next.
      const int64_t at = (int64_t{i} * columns + c) * weight.depth() / (int64_t{columns} * inputs);
      const int64_t column = int64_t{c} * weight.columns() / columns;
      ++counts[tiles.element(static_cast<int>(column), static_cast<int>(at)) >> 8U];
    }
  return upper_byte_table::of(counts);
}

// Nothing when the weight has too many exceptions.
packed_matrix pack_coded(const weight_reader& weight, bool chained) {
  if (tile_steps(weight.depth()) >= coded_steps_max) return {};
  static const auto code = cpu_features::detect().amx_bf16() ? code_tile_avx512 : code_tile;
  const upper_byte_table table = table_of(weight);
  packed_matrix packed = empty_amx({weight_storage::bf16_coded, chained}, weight.columns(), weight.depth());
  std::copy(table.upper.begin(), table.upper.end(), reinterpret_cast<uint8_t*>(packed.mutable_data()));
  const amx_product body = amx_product_of(packed);
  const tile_maker tiles(weight, table.padding(), chained);
  uint32_t* exceptions[2] = {};
  const uint32_t* ends[2] = {};
  const bool fits = each_tile(weight, [&](int column, int step) {
    const int tile_column = column / tile_columns, half = tile_column % 2;
    if (step == 0) {
      const exception_cursor room = body.exceptions(tile_column);
      exceptions[half] = const_cast<uint32_t*>(room.next);
      ends[half] = room.end;
      std::fill(exceptions[half], const_cast<uint32_t*>(room.end), ~0U);
    }
    alignas(64) uint16_t tile[tile_elements];
    tile_misses misses;
    tiles.make(column, step, tile);
    const std::byte* out = body.first_tile(tile_column) + ptrdiff_t{step} * 2 * tile_bytes(body.storage);
    code(table, tile, const_cast<std::byte*>(out), misses);
    return note_exceptions(tile, step, misses, exceptions[half], ends[half]);
  });
  return fits ? std::move(packed) : packed_matrix();
}

void fill_scales(const weight_reader& weight, float* out) {
  const int blocks = (weight.depth() + scale_block - 1) / scale_block;
  for (int column = 0; column < weight.columns(); column += tile_columns)
    for (int b = 0; b < blocks; ++b) *out++ = weight.scale(column, b * scale_block);
}

}  // namespace

std::optional<amx_storage> amx_storage::of(uint32_t number) {
  const amx_storage storage{static_cast<weight_storage>(number & ~chained_bit), (number & chained_bit) != 0};
  switch (storage.kind) {
    case weight_storage::bf16:
    case weight_storage::bf16_coded:
    case weight_storage::e4m3: return storage;
    default: return std::nullopt;
  }
}

packed_matrix empty_amx(const amx_storage& storage, int columns, int depth) {
  const auto panels = static_cast<size_t>((columns + 2 * tile_columns - 1) / (2 * tile_columns));
  const auto blocks = static_cast<size_t>((depth + scale_block - 1) / scale_block);
  packed_parts parts{storage.number(), 0, 0};
  if (storage.kind == weight_storage::e4m3)
    parts.body_offset = round_up_to_line(
        2 * panels * (blocks * sizeof(float) + sizeof(uint64_t) * static_cast<size_t>(mark_words(tile_steps(depth)))));
  if (storage.kind == weight_storage::bf16_coded) parts.body_offset = round_up_to_line(upper_bytes);
  amx_product shape{};
  shape.storage = storage.kind;
  shape.k = depth;
  const size_t bytes = parts.body_offset + panels * static_cast<size_t>(shape.panel_bytes());
  return make_packed(weight_format::amx_bf16, columns, depth, bytes, parts);
}

packed_matrix pack_amx(const weight_reader& weight, bool chained) {
  if (weight.dtype() != weight_dtype::fp8_e4m3) {
    packed_matrix coded = pack_coded(weight, chained);
    return coded ? std::move(coded) : pack_bf16(weight, chained);
  }
  packed_matrix packed = empty_amx({weight_storage::e4m3, chained}, weight.columns(), weight.depth());
  std::byte* data = packed.mutable_data();
  fill_scales(weight, reinterpret_cast<float*>(data + packed.parts().scales_offset));
  fill_e4m3_tiles(weight, packed);
  return packed;
}

amx_product amx_product_of(const packed_matrix& packed) {
  const packed_parts& parts = packed.parts();
  amx_product product{};
  const auto storage = amx_storage::of(parts.storage);
  require(storage.has_value(), "a packed weight names its storage");
  product.storage = storage->kind;
  product.chained = storage->chained;
  product.body = packed.data() + parts.body_offset;
  if (product.storage == weight_storage::e4m3) {
    const ptrdiff_t panels = (packed.n() + 2 * tile_columns - 1) / (2 * tile_columns);
    const ptrdiff_t blocks = (packed.k() + scale_block - 1) / scale_block;
    product.scales = reinterpret_cast<const float*>(packed.data() + parts.scales_offset);
    product.rare_marks = reinterpret_cast<const uint64_t*>(product.scales + 2 * panels * blocks);
  }
  if (product.storage == weight_storage::bf16_coded)
    product.upper_bytes = reinterpret_cast<const uint8_t*>(packed.data());
  product.n = packed.n();
  product.k = packed.k();
  return product;
}

}  // namespace troupe::kernels
