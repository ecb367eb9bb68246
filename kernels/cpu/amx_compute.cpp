#include "kernels/cpu/amx_compute.hpp"

#include <algorithm>
#include <array>

#include "kernels/check.hpp"
#include "kernels/cpu/amx_pack.hpp"

namespace troupe::kernels {
namespace {

amx_attention attention_of(const mla_shape& shape) { return {shape.heads, shape.rk, shape.dr, shape.scale}; }

uint16_t* tiles_of(std::byte* input) { return reinterpret_cast<uint16_t*>(input); }

size_t in_bytes(ptrdiff_t floats) { return static_cast<size_t>(floats) * sizeof(float); }

int first_unit(int head) { return head / unit_heads; }
int last_unit(int head) { return (head + unit_heads - 1) / unit_heads; }

void require_units(const mla_shape& shape, int head_begin, int head_end) {
  require(head_begin % unit_heads == 0 && (head_end % unit_heads == 0 || head_end == shape.heads),
          "a range of heads begins and ends at multiples of 16 or at the last");
}

int spans_of(int length) { return (length + span_positions - 1) / span_positions; }

}  // namespace

const amx_kernels& kernels_of(tiles kind) {
  return kind == tiles::hardware ? hardware_tile_kernels() : vector_tile_kernels();
}

std::string_view amx_compute::description() const {
  return tiles_.kind == tiles::hardware ? "amx_bf16" : "amx_bf16 (avx512)";
}

packed_matrix amx_compute::pack_as(const weight_view& weight, weight_format format, bool transposed) const {
  if (format == weight_format::f32) return f32_compute::pack_as(weight, format, transposed);
  return pack_amx(weight_reader(weight, transposed), tiles_.chained);
}

packed_matrix amx_compute::pack_room(weight_format format, uint32_t storage, int n, int k) const {
  if (format == weight_format::f32) return f32_compute::pack_room(format, storage, n, k);
  const auto wanted = amx_storage::of(storage);
  if (!wanted || wanted->chained != tiles_.chained) return {};
  return empty_amx(*wanted, n, k);
}

size_t amx_compute::input_bytes(int m, int k) const {
  const auto row_tiles = static_cast<size_t>((m + tile_rows - 1) / tile_rows);
  return row_tiles * static_cast<size_t>(tile_steps(k)) * tile_rows * tile_depth * sizeof(uint16_t);
}

void amx_compute::input_row(const float* x, int row, int k, std::byte* input) const {
  tiles_.input_row_f32(x, row, k, tiles_of(input));
}

void amx_compute::input_row(const uint16_t* x, int row, int k, std::byte* input) const {
  tiles_.input_row_bf16(x, row, k, tiles_of(input));
}

amx_product amx_compute::product_of(const packed_matrix& weight, const product_input& x, int n_begin, int n_end) const {
  require(weight && weight.format() == weight_format::amx_bf16, "the weight is packed for tiles");
  require(x.k == weight.k(), "the input is as wide as the weight");
  amx_product product = amx_product_of(weight);
  require(product.chained == tiles_.chained, "the weight is packed for these tiles");
  product.x = reinterpret_cast<const uint16_t*>(x.data);
  product.m = x.m;
  product.n_begin = n_begin;
  product.n_end = n_end;
  return product;
}

void amx_compute::matmul(const packed_matrix& weight, const product_input& x, float* y, int64_t ldy, int n_begin,
                         int n_end) const {
  require_columns(weight.n(), n_begin, n_end);
  tiles_.matmul(product_of(weight, x, n_begin, n_end), y, ldy);
}

bool amx_compute::matmul_apart(const packed_matrix& weight, const product_input& x, element kind,
                               std::byte* const* rows, int n_begin, int n_end) const {
  require_columns(weight.n(), n_begin, n_end);
  return tiles_.matmul_apart(product_of(weight, x, n_begin, n_end), kind == element::bf16, rows);
}

void amx_compute::gated_matmul(const packed_matrix& gate, const packed_matrix& up, const product_input& x,
                               std::byte* out, int n_begin, int n_end) const {
  require(gate.n() == up.n() && gate.k() == up.k(), "gate and up have one shape");
  require_columns(gate.n(), n_begin, n_end);
  require(n_begin % (2 * tile_columns) == 0 && (n_end % (2 * tile_columns) == 0 || n_end == gate.n()),
          "a gated range starts and ends at multiples of 32 or at n");
  tiles_.gated_matmul(product_of(gate, x, n_begin, n_end), product_of(up, x, n_begin, n_end), tiles_of(out));
}

void amx_compute::matmul(const packed_matrix& weight, const float* x, int64_t ldx, float* y, int64_t ldy, int m,
                         int n_begin, int n_end, scratch& memory) const {
  require(static_cast<bool>(weight), "the weight is packed");
  // The router's product stays in FP32 (its choices are discrete).
  if (weight.format() == weight_format::f32)
    return f32_compute::matmul(weight, x, ldx, y, ldy, m, n_begin, n_end, memory);
  if (m <= 0 || n_begin >= n_end) return;
  const product_input input{memory.take(input_bytes(m, weight.k())), m, weight.k()};
  for (int i = 0; i < m; ++i) input_row(x + i * ldx, i, weight.k(), const_cast<std::byte*>(input.data));
  matmul(weight, input, y, ldy, n_begin, n_end);
}

kv_layout amx_compute::layout_kv(int rk, int dr) const {
  require(rk > 0 && dr >= 0, "a latent has a width");
  const auto width = static_cast<size_t>(amx_attention{1, rk, dr, 1}.width());
  return {rk, dr, kv_layout::tokens * width * sizeof(uint16_t), tiles_.chained};
}

void amx_compute::kv_write(const kv_layout& layout, std::byte* block, int offset, const float* c,
                           const float* k_r) const {
  require(offset >= 0 && offset < kv_layout::tokens, "a KV offset lies inside its block");
  const amx_attention call{1, layout.rk, layout.dr, 1};
  const auto write = [&](const float* x, int width, int first_step) {
    for (int i = 0; i < width; i += tile_depth) {
      const int count = std::min(tile_depth, width - i);
      auto* to = reinterpret_cast<uint16_t*>(block) + call.latent_position(offset, first_step + i / tile_depth);
      tiles_.latents(x + i, count, to);
    }
  };
  write(c, layout.rk, 0);
  write(k_r, layout.dr, call.latent_steps());
}

mla_form amx_compute::form_of(const mla_shape& shape) const {
  const amx_attention call = attention_of(shape);
  const auto units = static_cast<size_t>(call.units());
  return {.query_bytes = units * static_cast<size_t>(call.unit_query()) * sizeof(uint16_t),
          .attended_bytes = static_cast<size_t>(shape.heads) * static_cast<size_t>(shape.rk) * sizeof(uint16_t),
          .partial_bytes = units * in_bytes(call.unit_partial()),
          .heads_together = unit_heads,
          .span = span_positions};
}

template <class Make, class Value>
static void make_queries(Make make, const mla_shape& shape, const Value* q, int head_begin, int head_end,
                         std::byte* out) {
  require_units(shape, head_begin, head_end);
  const amx_attention call = attention_of(shape);
  for (int unit = first_unit(head_begin); unit < last_unit(head_end); ++unit)
    make(call, q, unit, reinterpret_cast<uint16_t*>(out) + unit * call.unit_query());
}

void amx_compute::mla_query(const mla_shape& shape, const float* q, int head_begin, int head_end,
                            std::byte* out) const {
  make_queries(tiles_.query_f32, shape, q, head_begin, head_end, out);
}

void amx_compute::mla_query(const mla_shape& shape, const uint16_t* q, int head_begin, int head_end,
                            std::byte* out) const {
  make_queries(tiles_.query_bf16, shape, q, head_begin, head_end, out);
}

void amx_compute::mla_attend(const mla_shape& shape, const kv_layout& layout, std::span<const std::byte* const> blocks,
                             std::span<const mla_row> rows, int head_begin, int head_end, scratch& memory) const {
  require_attention(shape, layout, blocks, rows, head_begin, head_end);
  require_units(shape, head_begin, head_end);
  const amx_attention call = attention_of(shape);
  const int begin = first_unit(head_begin), end = last_unit(head_end);
  const size_t working = tiles_.attention_scratch();
  std::byte* space = memory.take(working + units_together * in_bytes(call.unit_partial()));
  auto* results = reinterpret_cast<float*>(space + working);
  struct place {
    const mla_row* row;
    int unit;
  };
  std::array<amx_attention_unit, units_together> units;
  std::array<place, units_together> places;
  size_t count = 0;
  int longest = 0;
  const auto flush = [&] {
    // The longest first, so that each span concerns a prefix of the units.
    std::array<size_t, units_together> order;
    for (size_t i = 0; i < count; ++i) order[i] = i;
    std::stable_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(count),
                     [&](size_t a, size_t b) { return units[a].length > units[b].length; });
    std::array<amx_attention_unit, units_together> sorted;
    for (size_t i = 0; i < count; ++i) sorted[i] = units[order[i]];
    const int spans = spans_of(longest);
    for (int span = 0; span < spans; ++span) {
      const int next = span + 1 < spans ? span + 1 : -1;
      int reached = 0;
      while (reached < static_cast<int>(count) && sorted[static_cast<size_t>(reached)].length > span * span_positions)
        ++reached;
      tiles_.attend_span(call, blocks.data(), sorted.data(), reached, span, next, span > 0, space);
    }
    for (size_t i = 0; i < count; ++i) {
      const int head = places[i].unit * unit_heads;
      tiles_.attended(call, units[i].result, places[i].unit,
                      reinterpret_cast<uint16_t*>(places[i].row->attended) + int64_t{head} * shape.rk);
    }
    count = 0;
    longest = 0;
  };
  for (const mla_row& row : rows)
    for (int unit = begin; unit < end; ++unit) {
      units[count] = {reinterpret_cast<const uint16_t*>(row.query) + unit * call.unit_query(), row.length,
                      results + static_cast<ptrdiff_t>(count) * call.unit_partial()};
      places[count] = {&row, unit};
      longest = std::max(longest, row.length);
      if (++count == units_together) flush();
    }
  if (count > 0) flush();
}

void amx_compute::mla_attend_span(const mla_shape& shape, const kv_layout& layout,
                                  std::span<const std::byte* const> blocks, const mla_row& row, const mla_span& span,
                                  int head_begin, int head_end, std::byte* partial, scratch& memory) const {
  require_attention(shape, layout, blocks, {&row, 1}, head_begin, head_end);
  require_units(shape, head_begin, head_end);
  const int spans = spans_of(row.length);
  require(span.index >= 0 && span.index < spans && span.next < spans, "a span lies within the row's positions");
  const amx_attention call = attention_of(shape);
  std::byte* space = memory.take(tiles_.attention_scratch());
  std::array<amx_attention_unit, units_together> units;
  const int end = last_unit(head_end);
  for (int unit = first_unit(head_begin); unit < end;) {
    int count = 0;
    for (; unit < end && count < units_together; ++unit, ++count)
      units[static_cast<size_t>(count)] = {reinterpret_cast<const uint16_t*>(row.query) + unit * call.unit_query(),
                                           row.length, reinterpret_cast<float*>(partial) + unit * call.unit_partial()};
    tiles_.attend_span(call, blocks.data(), units.data(), count, span.index, span.next, span.merge, space);
  }
}

void amx_compute::mla_merge(const mla_shape& shape, std::byte* partials, int merged, int spans, const mla_row& row,
                            int piece, int pieces) const {
  require(merged >= 1 && merged <= spans && piece >= 0 && piece < pieces, "a piece of a merge lies within it");
  const amx_attention call = attention_of(shape);
  const auto stride = static_cast<ptrdiff_t>(form_of(shape).partial_bytes / sizeof(float));
  const step_range steps{call.latent_steps() * piece / pieces, call.latent_steps() * (piece + 1) / pieces};
  for (int unit = 0; unit < call.units(); ++unit)
    tiles_.merge(call, reinterpret_cast<float*>(partials) + unit * call.unit_partial(), stride, merged, spans, unit,
                 steps, reinterpret_cast<uint16_t*>(row.attended) + int64_t{unit} * unit_heads * shape.rk);
}

void amx_compute::mla_input_row(const mla_shape& shape, const std::byte* attended, int head, int row,
                                std::byte* input) const {
  tiles_.input_row_bf16(reinterpret_cast<const uint16_t*>(attended) + int64_t{head} * shape.rk, row, shape.rk,
                        tiles_of(input));
}

double amx_compute::peak_work(int rounds) const { return tiles_.peak_work(rounds); }

}  // namespace troupe::kernels
