// Reads a stored weight element by element, straight or transposed, for the packers.
#pragma once

#include <bit>
#include <cstring>

#include "kernels/check.hpp"
#include "kernels/compute.hpp"
#include "kernels/cpu/lanes.hpp"

namespace troupe::kernels {

// The product a packer prepares for: `columns` outputs, each a sum over `depth` inputs. Straight, column j is row j of
// the weight; transposed, it is column j of the weight.
class weight_reader {
 public:
  weight_reader(const weight_view& weight, bool transposed)
      : weight_(weight),
        column_stride_(transposed ? 1 : weight.k),
        depth_stride_(transposed ? weight.k : 1),
        columns_(transposed ? weight.k : weight.n),
        depth_(transposed ? weight.n : weight.k),
        transposed_(transposed) {
    require(weight.n > 0 && weight.k > 0 && weight.data != nullptr, "a weight has rows, columns and data");
    require(weight.dtype != weight_dtype::fp8_e4m3 || weight.scale_inv != nullptr, "an FP8 weight has scales");
  }

  weight_dtype dtype() const { return weight_.dtype; }
  int columns() const { return columns_; }
  int depth() const { return depth_; }
  bool transposed() const { return transposed_; }

  // A column's stored elements, one after the other. Requires: not transposed.
  const std::byte* row(int column) const {
    const int64_t bytes = weight_.dtype == weight_dtype::f32 ? 4 : weight_.dtype == weight_dtype::bf16 ? 2 : 1;
    return static_cast<const std::byte*>(weight_.data) + column * column_stride_ * bytes;
  }

  // The stored element; `Element` is the type that dtype() names. The data may be unaligned.
  template <class Element>
  Element stored(int column, int at) const {
    Element element;
    const int64_t index = column * column_stride_ + at * depth_stride_;
    std::memcpy(&element, static_cast<const std::byte*>(weight_.data) + index * static_cast<int64_t>(sizeof(Element)),
                sizeof(Element));
    return element;
  }

  // The FP8 multiplier of the block that holds (column, at). Scales may be unaligned too.
  float scale(int column, int at) const {
    const int row_block = (transposed_ ? at : column) / scale_block;
    const int column_block = (transposed_ ? column : at) / scale_block;
    const int64_t blocks_in_row = (weight_.k + scale_block - 1) / scale_block;
    float value;
    std::memcpy(&value,
                reinterpret_cast<const std::byte*>(weight_.scale_inv) +
                    (row_block * blocks_in_row + column_block) * int64_t{sizeof(float)},
                sizeof(float));
    return value;
  }

  // Whether any FP8 code is NaN, which the arithmetic decoders do not know.
  bool has_nan_code() const {
    const auto* codes = static_cast<const uint8_t*>(weight_.data);
    const int64_t count = int64_t{weight_.n} * weight_.k;
    uint8_t found = 0;
    for (int64_t i = 0; i < count; ++i) found |= (codes[i] & 0x7fU) == 0x7f;
    return found != 0;
  }

 private:
  weight_view weight_;
  int64_t column_stride_, depth_stride_;
  int columns_, depth_;
  bool transposed_;
};

constexpr size_t round_up_to_line(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace troupe::kernels
