// The math of one numeric profile, as single-threaded functions over ranges.
//
// Activations are FP32 row-major arrays between products; what products and attention read (`product_input`,
// queries, the latent KV cache) a profile keeps rounded and ordered as it computes. A caller that has several threads
// splits a product by output columns or by rows; neither changes a bit, since every output element is one sum in one
// fixed order. Nothing here allocates but `pack`. `scratch` belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/profile.hpp"

namespace troupe::kernels {

enum class weight_dtype : uint8_t { f32, bf16, fp8_e4m3 };

// A weight as stored: y = W x with W [n, k] row-major. FP8 carries one FP32 multiplier for each
// 128 x 128 block: `scale_inv` [ceil(n/128), ceil(k/128)] (MODEL.md calls it weight_scale_inv).
// `data` may be unaligned.
struct weight_view {
  weight_dtype dtype = weight_dtype::f32;
  const void* data = nullptr;
  const float* scale_inv = nullptr;  // fp8 only
  int n = 0;
  int k = 0;
};

// Which arithmetic a packed weight is for. `f32` also serves the router inside profile amx_bf16.
enum class weight_format : uint8_t { f32, amx_bf16 };

// Where a packer put the parts of a weight, from its first byte. Kept beside the weight, not in it: a product would
// otherwise begin with waiting for memory.
struct packed_parts {
  uint32_t storage = 0;      // the kernels' weight_storage
  size_t scales_offset = 0;  // FP8 only
  size_t body_offset = 0;
};

// A weight in the layout its kernel streams; made once, read by any number of threads.
class packed_matrix {
 public:
  packed_matrix() = default;
  packed_matrix(packed_matrix&&) noexcept = default;
  packed_matrix& operator=(packed_matrix&&) noexcept = default;

  int n() const { return n_; }
  int k() const { return k_; }
  weight_format format() const { return format_; }
  size_t bytes() const { return bytes_; }
  const std::byte* data() const { return data_.get(); }
  const packed_parts& parts() const { return parts_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  friend packed_matrix make_packed(weight_format format, int n, int k, size_t bytes, const packed_parts& parts);
  friend packed_matrix borrow_packed(const packed_matrix& like, std::byte* memory);
  struct release {
    // Constructors rather than an initialiser, which a nested class may not use before the outer one is complete.
    release() noexcept : mapped(0) {}
    explicit release(size_t bytes) noexcept : mapped(bytes) {}
    void operator()(std::byte* memory) const;
    static constexpr size_t borrowed = SIZE_MAX;
    size_t mapped;  // bytes of a mapping or of a slab; 0: from aligned_alloc; `borrowed`: somebody else's
  };
  std::unique_ptr<std::byte[], release> data_;
  size_t bytes_ = 0;
  int n_ = 0;
  int k_ = 0;
  weight_format format_ = weight_format::f32;
  packed_parts parts_;

 public:
  std::byte* mutable_data() { return data_.get(); }  // only while packing
};

// Storage for a packed weight, 64-byte aligned, on huge pages where they help.
packed_matrix make_packed(weight_format format, int n, int k, size_t bytes, const packed_parts& parts);

// A weight of the same shape and parts, whose bytes [like.bytes()] somebody else keeps at `memory`, 64-byte aligned,
// for as long as it is used.
packed_matrix borrow_packed(const packed_matrix& like, std::byte* memory);

// Working memory of one thread; grows to the largest call and stays.
class scratch {
 public:
  // 64-byte aligned, at least `bytes`; contents undefined; valid until the next call.
  std::byte* take(size_t bytes);

 private:
  std::vector<std::byte> memory_;
};

// How latent KV lies in the cache: blocks of `tokens` positions (aligned to absolute position), each
// position holding the normalised latent c [rk] and the rotated key k_r [dr].
struct kv_layout {
  static constexpr int tokens = 32;  // positions a block
  int rk = 0;
  int dr = 0;
  // Set by compute::layout_kv:
  size_t block_bytes = 0;
  bool chained = false;  // the order of values in a row, where profile amx_bf16 knows two (cpu/amx_layout.hpp)
};

// Shape of absorbed attention.
struct mla_shape {
  int heads = 0;
  int rk = 0;       // latent width
  int dr = 0;       // rope width
  float scale = 0;  // softmax scale
};

// How a profile keeps and divides attention.
struct mla_form {
  size_t query_bytes = 0;     // one row's queries of all heads, as `mla_query` writes them
  size_t attended_bytes = 0;  // one row's weighted latents of all heads
  size_t partial_bytes = 0;   // one row's result over one span
  int heads_together = 1;     // ranges of heads begin at multiples of this
  int span = 0;               // positions that one partial result covers; 0: a row's positions are never divided
};

// One query row over positions 0 .. length-1 of its sequence.
struct mla_row {
  const std::byte* query = nullptr;  // [query_bytes]
  std::byte* attended = nullptr;     // [attended_bytes]
  int length = 0;
};

// A span of a row's positions.
struct mla_span {
  int index = 0;
  int next = -1;       // a span that this thread probably attends to next, to be fetched meanwhile; negative: none
  bool merge = false;  // into the partial result, which holds the sum of all spans before
};

// Rows as inputs of matrix products: rounded and ordered as the profile multiplies them. Made once (`input_row`), read
// by any number of products and threads. What lies in rows beyond `m` of the last 16 does not matter.
struct product_input {
  const std::byte* data = nullptr;  // [input_bytes(m, k)], 64-byte aligned
  int m = 0;
  int k = 0;
};

enum class element : uint8_t { f32, bf16 };

// One of a token's experts and its gate weight.
struct routed_expert {
  int expert = 0;
  float gate = 0;
};

class compute {
 public:
  virtual ~compute() = default;

  // The fastest code for `wanted` on this CPU. Requires: the CPU has it (`cpu_features`).
  static std::unique_ptr<compute> make(profile wanted);
  // One given implementation of profile f32, for tests. Requires: the CPU has it.
  static std::unique_ptr<compute> make_f32(isa wanted);
  // The same of profile amx_bf16.
  static std::unique_ptr<compute> make_amx(tiles wanted);

  virtual profile numeric_profile() const = 0;
  // "amx_bf16", "amx_bf16 (avx512)", "f32 (avx512)", ...
  virtual std::string_view description() const = 0;

  // The format in which this profile multiplies weights.
  virtual weight_format preferred_format() const = 0;

  // Packs a weight. Thread: any; may run in parallel for different weights.
  virtual packed_matrix pack(const weight_view& weight, weight_format format) const = 0;
  // Room for a packed weight that comes from elsewhere, with the storage that its `parts()` named there; empty when
  // this profile does not know the format or the storage. Requires: n and k are positive.
  virtual packed_matrix pack_room(weight_format format, uint32_t storage, int n, int k) const = 0;
  // Packs the transpose: the product is then y[m, k] = x[m, n] * W (used for the absorbed key
  // projection, whose UK [dn, rk] multiplies q from the other side).
  virtual packed_matrix pack_transposed(const weight_view& weight, weight_format format) const = 0;

  virtual size_t input_bytes(int m, int k) const = 0;
  // Makes x [k] row `row` of a product's input. Different rows may be made at the same time.
  virtual void input_row(const float* x, int row, int k, std::byte* input) const = 0;
  // The same from BF16 values.
  virtual void input_row(const uint16_t* x, int row, int k, std::byte* input) const = 0;

  // y[i, j] = sum over k of x[i, k] * W[j, k], for all rows i and columns j in [n_begin, n_end).
  // y [m, n] FP32 with row stride ldy (addressed from column 0).
  // Requires: n_begin and n_end are multiples of 16 or n_end == n; the weight is of the preferred format.
  virtual void matmul(const packed_matrix& weight, const product_input& x, float* y, int64_t ldy, int n_begin,
                      int n_end) const = 0;
  // The same to rows that lie apart: column j of row i is element j of rows[i], rounded if `kind` is BF16. Returns
  // false when a value is NaN or infinite.
  virtual bool matmul_apart(const packed_matrix& weight, const product_input& x, element kind, std::byte* const* rows,
                            int n_begin, int n_end) const = 0;
  // Columns [n_begin, n_end) of silu(x G) * (x U), as the input of the product that follows: out [input_bytes(m, n)].
  // Requires: as matmul, in multiples of 32; gate and up have the same shape.
  virtual void gated_matmul(const packed_matrix& gate, const packed_matrix& up, const product_input& x, std::byte* out,
                            int n_begin, int n_end) const = 0;
  // As matmul from FP32 rows x [m, k] with row stride ldx, which it makes an input of first. Also takes weights of
  // format f32.
  virtual void matmul(const packed_matrix& weight, const float* x, int64_t ldx, float* y, int64_t ldy, int m,
                      int n_begin, int n_end, scratch& memory) const = 0;

  // out[i] = x[i] * rsqrt(mean(x^2) + eps) * weight[i], i in [0, width). x and out may be the same.
  virtual void rms_norm(const float* x, const float* weight, float* out, int width, float eps) const = 0;

  // out[i] = silu(gate[i]) * up[i].
  virtual void silu_mul(const float* gate, const float* up, float* out, int width) const = 0;

  // The combine of one token (docs/numerics.md): x += (sum over i of gates[i] * outputs[i], in order) + shared.
  // outputs: `count` rows [width] of `kind`; shared, x [width].
  virtual void combine_row(const std::byte* const* outputs, element kind, const routed_expert* experts, int count,
                           const float* shared, float* x, int width) const = 0;

  // y[i] += x[i] * factor, one fused multiply-add each.
  virtual void axpy(float factor, const float* x, float* y, int width) const = 0;

  // scores[i] = 1 / (1 + exp(-z[i])).
  virtual void sigmoid(const float* z, float* out, int count) const = 0;

  virtual kv_layout layout_kv(int rk, int dr) const = 0;
  // Writes position `offset` (0 .. tokens-1) of a block: c [rk], k_r [dr] FP32, rounded as the profile says.
  virtual void kv_write(const kv_layout& layout, std::byte* block, int offset, const float* c,
                        const float* k_r) const = 0;

  // Core attention of a query row over positions 0 .. length-1:
  //   s[j, t] = scale * (q[j, 0:rk] . c[t] + q[j, rk:rk+dr] . k_r[t]);  p = softmax(s);  out[j] = sum p c[t]
  // The positions are cut into spans of a fixed size at fixed places; partial results merge in the order of position,
  // whoever computed them. Heads never mix.
  virtual mla_form form_of(const mla_shape& shape) const = 0;
  // Makes queries of q [heads, rk + dr] for heads [head_begin, head_end): out [query_bytes].
  virtual void mla_query(const mla_shape& shape, const float* q, int head_begin, int head_end,
                         std::byte* out) const = 0;
  // The same of BF16 values.
  virtual void mla_query(const mla_shape& shape, const uint16_t* q, int head_begin, int head_end,
                         std::byte* out) const = 0;
  // Attends for rows of one sequence; `blocks` are the addresses of at least ceil(length / tokens) blocks for the
  // largest length.
  virtual void mla_attend(const mla_shape& shape, const kv_layout& layout, std::span<const std::byte* const> blocks,
                          std::span<const mla_row> rows, int head_begin, int head_end, scratch& memory) const = 0;
  // The same for one row in two steps: partial results of spans, by any threads, then their sum in order of position.
  // partial [partial_bytes]. Requires, for both: form_of(shape).span > 0.
  virtual void mla_attend_span(const mla_shape& shape, const kv_layout& layout,
                               std::span<const std::byte* const> blocks, const mla_row& row, const mla_span& span,
                               int head_begin, int head_end, std::byte* partial, scratch& memory) const = 0;
  // partials [spans, partial_bytes], of which the first holds the sum of `merged` >= 1 and those up to `merged`
  // nothing. Piece `piece` of `pieces` is some of the latents of all heads; different pieces may be made at the same
  // time.
  virtual void mla_merge(const mla_shape& shape, std::byte* partials, int merged, int spans, const mla_row& row,
                         int piece, int pieces) const = 0;
  // Makes head `head` of an attended row [rk] row `row` of a product's input.
  virtual void mla_input_row(const mla_shape& shape, const std::byte* attended, int head, int row,
                             std::byte* input) const = 0;

  // Multiplies what lies in registers, `rounds` times, as fast as the profile's instructions go, and returns the
  // floating-point operations: for measurements.
  virtual double peak_work(int rounds) const = 0;

  // Reads memory as fast as one thread can, in several streams: for measurements. The result only keeps the reads.
  virtual uint32_t read_through(std::span<const std::byte> memory) const = 0;

  // Largest logit's index (lowest index wins ties).
  virtual int argmax(const float* logits, int count) const = 0;
  // log(sum(exp(logits))), fixed order.
  virtual float log_sum_exp(const float* logits, int count, scratch& memory) const = 0;
};

// --- Profile-independent pieces (plain C++, same bits everywhere) ---

// YaRN or plain inverse frequencies, MODEL.md 7.1. Empty `yarn` factor (0) means plain.
struct rope_parameters {
  int dim = 0;  // dr
  double theta = 10000;
  double factor = 0;  // 0: no scaling
  double original_max_position = 4096;
  double beta_fast = 32;
  double beta_slow = 1;
  double mscale = 1;
  double mscale_all_dim = 0;
};
// w_i, i in [0, dim/2), as HF computes them (final values FP32).
std::vector<float> inverse_frequencies(const rope_parameters& parameters);
// The multiplier of cos and sin (MODEL.md 7.2, item 1).
double rope_cos_sin_scale(const rope_parameters& parameters);
// MODEL.md 7.2, item 2; `dq` = nope + rope width of a head.
double softmax_scale(const rope_parameters& parameters, int dq);
// cos and sin of position * w_i times cos_sin_scale, each [dim/2] FP32; our own sin and cos (double inside).
void rope_table(std::span<const float> frequencies, int64_t position, double cos_sin_scale, float* cosines,
                float* sines);
// Rotates interleaved pairs in place: x [dim].
void rope_rotate(float* x, const float* cosines, const float* sines, int dim);

// FP8 E4M3 ("fn"), MODEL.md 10.1. Encoding rounds to nearest even and saturates at 448.
float e4m3_decode(uint8_t code);
uint8_t e4m3_encode(float value);
// One 1 x 128 activation tile (or a shorter last one): returns the scale, MODEL.md 10.3.
float quantise_tile(const float* x, int count, uint8_t* codes);

// BF16, round to nearest even, NaN kept.
uint16_t bf16_round(float value);
float bf16_widen(uint16_t value);
void bf16_round_row(const float* x, uint16_t* out, int count);
void bf16_widen_row(const uint16_t* x, float* out, int count);

// Group-limited top-k router, MODEL.md 9.1 and 9.2.
struct router_parameters {
  int experts = 0;
  int groups = 1;
  int groups_kept = 1;
  int top_k = 0;
  float scaling = 1;      // routed_scaling_factor
  bool sigmoid = true;    // else softmax
  bool normalise = true;  // norm_topk_prob
  bool group_limited = true;
  bool biased_selection = true;  // noaux_tc
};
// z [experts] router logits; bias [experts] or null. Writes top_k entries, highest gate first and
// then by index (the order in which the combine sums). Ties break toward the lower index.
void route(const router_parameters& parameters, const float* z, const float* bias, routed_expert* out);

// exp, log, sigmoid of our own: the scalar definition that every vector version equals bit for bit.
float exp_f32(float x);
float log_f32(float x);

// Philox4x32-10, keyed and counted: 4 words for (key, counter).
void philox4x32(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]);

struct sampling_parameters {
  float temperature = 1;  // 0: greedy
  float top_p = 1;
  int top_k = 0;  // 0: off
};
struct sampled_token {
  int token = 0;
  float logprob = 0;  // of the unmodified distribution: logit - log_sum_exp(logits)
};
// Draws token number `index` of (seed, choice): temperature, top-k, top-p, then one uniform draw by
// counter. Ties in top-k and top-p break by token id. `count` logits.
sampled_token sample(const compute& math, const float* logits, int count, const sampling_parameters& parameters,
                     uint64_t seed, uint32_t choice, uint32_t index, scratch& memory);

// Sets flush-to-zero off, denormals-are-zero off and rounding to nearest on the calling thread; each
// computing thread calls it once. With AMX it also configures the thread's tiles on first use.
void prepare_thread();

}  // namespace troupe::kernels
