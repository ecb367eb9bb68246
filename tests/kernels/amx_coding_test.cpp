// BF16 weights in 12 bits: nothing is lost, whatever the weight.
#include "kernels/cpu/amx_coding.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/cpu/amx_emulation.hpp"
#include "kernels/cpu/amx_pack.hpp"
#include "tests/kernels/fixtures.hpp"

using namespace troupe::testing;

namespace {

struct alignas(64) bf16_tile {
  std::array<uint16_t, tile_elements> elements;
};
struct alignas(64) coded_tile {
  std::array<std::byte, tile_elements * 3 / 2> bytes;
};

uint16_t any_bits(std::string_view name, size_t i) { return static_cast<uint16_t>(t0_mix(fnv1a(name) + i) >> 40U); }

// A BF16 weight [n, k] of value(i).
template <class Value>
test_weight weight_of(int n, int k, Value value) {
  test_weight w{weight_dtype::bf16, n, k, std::vector<std::byte>(sized(n * k * 2)), {}, {}};
  for (size_t i = 0; i < sized(n * k); ++i) {
    const uint16_t element = value(i);
    std::memcpy(w.data.data() + 2 * i, &element, 2);
  }
  return w;
}

weight_storage storage_of(const test_weight& w) {
  return amx_product_of(pack_amx(weight_reader(w.view(), false), false)).storage;
}

}  // namespace

TEST_CASE("a coded tile with its exceptions gives back every bit, infinities and NaN too") {
  std::array<uint32_t, 256> counts{};
  for (const int upper : {0x3c, 0xbc, 0x3b, 0xbb, 0x00, 0x80, 0x7f, 0xff}) counts[sized(upper)] = 10;
  const upper_byte_table table = upper_byte_table::of(counts);
  for (size_t round = 0; round < 20; ++round) {
    CAPTURE(round);
    bf16_tile tile, decoded;
    for (size_t i = 0; i < tile.elements.size(); ++i) tile.elements[i] = any_bits("tile", round * tile_elements + i);
    // Some tiles have few exceptions, some hundreds.
    if (round % 2 == 0)
      for (size_t i = 0; i < tile.elements.size(); ++i)
        if (i % 50 != 0) tile.elements[i] = static_cast<uint16_t>(0x3c00 | (tile.elements[i] & 0xff));
    coded_tile coded;
    tile_misses misses;
    code_tile(table, tile.elements.data(), coded.bytes.data(), misses);
    std::array<uint32_t, tile_elements> exceptions;
    exceptions.fill(~0U);
    uint32_t* next = exceptions.data();
    REQUIRE(note_exceptions(tile.elements.data(), 7, misses, next, exceptions.data() + exceptions.size()));
    decode_coded_tile(table.upper.data(), coded.bytes.data(), decoded.elements.data());
    exception_cursor cursor{exceptions.data(), exceptions.data() + exceptions.size()};
    cursor.mend(6, decoded.elements.data());
    CHECK(cursor.next == exceptions.data());
    cursor.mend(7, decoded.elements.data());
    CHECK(decoded.elements == tile.elements);

    if (cpu_features::detect().amx_bf16()) {
      coded_tile fast;
      tile_misses fast_misses;
      code_tile_avx512(table, tile.elements.data(), fast.bytes.data(), fast_misses);
      CHECK(fast.bytes == coded.bytes);
      CHECK(fast_misses == misses);
    }
  }
}

TEST_CASE("weights like trained ones are coded, and those with many exponents stay BF16") {
  const auto normal = [](size_t i) {
    float sum = 0;
    for (size_t part = 0; part < 12; ++part) sum += static_cast<float>(any_bits("normal", i * 12 + part)) / 65536.0F;
    return bf16_round((sum - 6) * 0.02F);
  };
  CHECK(storage_of(weight_of(64, 256, normal)) == weight_storage::bf16_coded);
  CHECK(storage_of(weight_of(64, 256, [&](size_t i) { return i % 3 == 0 ? uint16_t{0} : normal(i); })) ==
        weight_storage::bf16_coded);
  CHECK(storage_of(weight_of(64, 256, [](size_t i) { return any_bits("wild", i); })) == weight_storage::bf16);
}

TEST_CASE("a coded weight takes three quarters of its bytes, and one part in fifty more at most") {
  const test_weight w = make_weight("coded.W", weight_dtype::bf16, 256, 1024);
  const packed_matrix packed = pack_amx(weight_reader(w.view(), false), false);
  REQUIRE(amx_product_of(packed).storage == weight_storage::bf16_coded);
  CHECK(static_cast<double>(packed.bytes()) <= 0.75 * 1.02 * static_cast<double>(w.data.size()));
}

TEST_CASE("weights of any kind give the emulation's bits, coded or not, in whole and in half panels") {
  for (const auto& math : amx_implementations()) {
    CAPTURE(math->description());
    const int n = 80, k = 330, most = 150;
    const auto exponents = [](int count) {
      return [count](size_t i) {
        const uint16_t bits = any_bits("exponents", i);
        return static_cast<uint16_t>((bits & 0x807fU) | (100 + (bits >> 7U) % static_cast<unsigned>(count)) << 7U);
      };
    };
    const auto rarely_odd = [](size_t i) {
      const uint16_t bits = any_bits("rare", i);
      return static_cast<uint16_t>(i % 700 == 0 ? (bits & 0xbfffU) : (bits & 0x80ffU) | 0x3d00U);
    };
    for (const test_weight& w : {weight_of(n, k, exponents(3)), weight_of(n, k, exponents(40)),
                                 weight_of(n, k, rarely_odd), make_weight("kinds.W", weight_dtype::fp8_e4m3, n, k)}) {
      const packed_matrix packed = math->pack(w.view(), weight_format::amx_bf16);
      CAPTURE(static_cast<int>(amx_product_of(packed).storage));
      const auto x = values("kinds.x", sized(most * k), 3);
      for (const int m : {1, 4, 5, 16, 17, 32, 33, 128, most}) {
        CAPTURE(m);
        const auto whole = emulated(packed, x, m);
        CHECK(same_bits(product(*math, packed, x, m), whole));
      }
    }
  }
}

TEST_CASE("a gated product may have one weight coded and the other not, and is zero beyond its width") {
  for (const auto& math : amx_implementations()) {
    CAPTURE(math->description());
    const int n = 72, k = 96, most = 40;
    // Numbers of one exponent, and the same ones with a few of many exponents among them.
    const auto plain = [](size_t i) { return static_cast<uint16_t>((any_bits("gate", i) & 0x80ffU) | 0x3d00U); };
    const auto wild = [&](size_t i) {
      return i % 4 != 0 ? plain(i)
                        : static_cast<uint16_t>((plain(i) & 0x807fU) | (90 + any_bits("wild", i) % 37U) << 7U);
    };
    const packed_matrix coded = math->pack(weight_of(n, k, plain).view(), weight_format::amx_bf16);
    const packed_matrix straight = math->pack(weight_of(n, k, wild).view(), weight_format::amx_bf16);
    REQUIRE(amx_product_of(coded).storage == weight_storage::bf16_coded);
    REQUIRE(amx_product_of(straight).storage == weight_storage::bf16);
    const auto x = values("gated.x", sized(most * k));
    const auto gated = [&](const packed_matrix& gate, const packed_matrix& up, int m) {
      scratch in, out;
      std::byte* input = in.take(math->input_bytes(m, k));
      std::byte* result = out.take(math->input_bytes(m, n));
      for (int i = 0; i < m; ++i) math->input_row(x.data() + i * k, i, k, input);
      math->gated_matmul(gate, up, {input, m, k}, result, 0, n);
      const auto* rows = reinterpret_cast<const uint16_t*>(result);
      std::vector<uint16_t> first(sized(tile_steps(n) * tile_depth));
      for (int j = 0; j < tile_steps(n) * tile_depth; ++j)
        first[sized(j)] = rows[input_row_position(0, n) + j / tile_depth * tile_elements + j % tile_depth];
      return first;
    };
    const auto alone = gated(coded, straight, 1), turned = gated(straight, coded, 1);
    CHECK(alone != turned);
    for (const auto& row : {alone, turned, gated(coded, coded, 1)})
      CHECK(std::all_of(row.begin() + n, row.end(), [](uint16_t beyond) { return beyond == 0; }));
    for (const int m : {4, 5, 16, 17, most}) {
      CAPTURE(m);
      CHECK(gated(coded, straight, m) == alone);
      CHECK(gated(straight, coded, m) == turned);
    }
  }
}

TEST_CASE("exceptions from a broken peer stay inside their tile") {
  for (const auto& math : amx_implementations()) {
    CAPTURE(math->description());
    const int n = 64, k = 96;
    const test_weight ones = weight_of(n, k, [](size_t) { return uint16_t{0x3f80}; });
    const amx_storage storage = *amx_storage::of(math->pack(ones.view(), weight_format::amx_bf16).parts().storage);
    REQUIRE(storage.kind == weight_storage::bf16_coded);
    packed_matrix room = math->pack_room(weight_format::amx_bf16, storage.number(), n, k);
    REQUIRE(room);
    for (const int kind : {0, 1, 2}) {  // all of step 0, of any step, of none
      for (size_t i = 0; i < room.bytes(); ++i)
        room.mutable_data()[i] = kind == 0   ? std::byte{0}
                                 : kind == 1 ? static_cast<std::byte>(any_bits("broken", i))
                                             : std::byte{0xff};
      for (const int m : {1, 8, 40}) {
        const auto x = values("broken.x", sized(m * k));
        CHECK(product(*math, room, x, m).size() == sized(m * n));
      }
    }
  }
}

TEST_CASE("room for a weight in an order of inputs that these tiles do not multiply is refused") {
  for (const auto& math : amx_implementations()) {
    CAPTURE(math->description());
    int known = 0;
    for (const bool chained : {false, true})
      for (const auto kind : {weight_storage::bf16, weight_storage::bf16_coded, weight_storage::e4m3})
        if (math->pack_room(weight_format::amx_bf16, amx_storage{kind, chained}.number(), 32, 32)) ++known;
    CHECK(known == 3);
    for (const uint32_t unknown : {0U, 7U, 0x100U, 0x201U, ~0U})
      CHECK_FALSE(math->pack_room(weight_format::amx_bf16, unknown, 32, 32));
  }
}
