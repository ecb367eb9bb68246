// Where packed weights lie, and whether the fast packers put every element where the plain ones do.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string>
#include <thread>

#include "kernels/cpu/amx_coding.hpp"
#include "kernels/cpu/amx_pack.hpp"
#include "kernels/cpu/f32_pack.hpp"
#include "tests/kernels/fixtures.hpp"

using namespace troupe::testing;

namespace {

constexpr size_t mib = size_t{1} << 20;

// A field of /proc/self/smaps_rollup, in bytes.
size_t process_memory(const std::string& field) {
  std::ifstream lines("/proc/self/smaps_rollup");
  std::string word;
  size_t kilobytes = 0;
  while (lines >> word)
    if (word == field + ":" && lines >> kilobytes) return kilobytes * 1024;
  return 0;
}

bool huge_pages_given() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string text;
  return std::getline(file, text) && text.find("[never]") == text.npos;
}

// `count` weights of 1 MiB, packed by a thread of its own as a loader does.
std::vector<packed_matrix> pack_on_a_thread(const compute& math, int count) {
  const std::vector<uint16_t> ones(512 * 1024, 0x3f80);
  const weight_view w{.dtype = weight_dtype::bf16, .data = ones.data(), .n = 512, .k = 1024};
  std::vector<packed_matrix> packed;
  std::thread([&] {
    for (int i = 0; i < count; ++i) packed.push_back(math.pack(w, weight_format::f32));
  }).join();
  return packed;
}

uint16_t element_of(const test_weight& w, int row, int at) {
  uint16_t value = 0;
  std::memcpy(&value, w.data.data() + (sized(row) * sized(w.k) + sized(at)) * 2, 2);
  return value;
}

}  // namespace

TEST_CASE("a packed weight of any size begins at a cache line") {
  const auto math = compute::make(profile::f32);
  for (const int k : {1, 70, 1024, 1031, 65536, 140000}) {
    CAPTURE(k);
    const packed_matrix packed = math->pack(make_weight("size.W", weight_dtype::f32, 16, k).view(), weight_format::f32);
    CHECK(reinterpret_cast<uintptr_t>(packed.data()) % 64 == 0);
  }
}

TEST_CASE("weights that are smaller than a huge page lie on huge pages together") {
  if (!huge_pages_given() || process_memory("Rss") == 0) {
    MESSAGE("skipped: this system gives no huge pages, or does not tell");
    return;
  }
  const auto math = compute::make(profile::f32);
  const size_t before = process_memory("AnonHugePages");
  const auto packed = pack_on_a_thread(*math, 32);
  CHECK(process_memory("AnonHugePages") >= before + 30 * mib);
}

TEST_CASE("memory of weights goes back to the system with the weights") {
  const auto math = compute::make(profile::f32);
  auto packed = pack_on_a_thread(*math, 64);
  const size_t held = process_memory("Rss");
  packed.clear();
  if (held == 0) {
    MESSAGE("skipped: this system does not tell a process's memory");
    return;
  }
  CHECK(process_memory("Rss") + 60 * mib <= held);
}

TEST_CASE("every element of a BF16 weight lies where its layout says") {
  for (const auto& [n, k] : {std::pair{16, 32}, {32, 64}, {64, 160}, {40, 96}, {17, 33}, {100, 250}, {5, 31}}) {
    CAPTURE(n);
    CAPTURE(k);
    const test_weight w = make_weight("layout.W", weight_dtype::bf16, n, k);
    const packed_matrix panels = pack_f32(weight_reader(w.view(), false));
    const auto* panel_body = reinterpret_cast<const uint16_t*>(f32_product_of(panels).panels);
    const auto expected = [&w, n = n, k = k](int column, int at) {
      return column < n && at < k ? element_of(w, column, at) : uint16_t{0};
    };
    for (const bool chained : {false, true}) {
      CAPTURE(chained);
      const packed_matrix packed = pack_amx(weight_reader(w.view(), false), chained);
      const amx_product tiles = amx_product_of(packed);
      REQUIRE(tiles.storage == weight_storage::bf16_coded);
      REQUIRE(tiles.chained == chained);
      for (int column = 0; column < n; ++column) {
        exception_cursor exceptions = tiles.exceptions(column / tile_columns);
        for (int step = 0; step < tile_steps(k); ++step) {
          std::array<uint16_t, tile_elements> tile;
          decode_coded_tile(tiles.upper_bytes,
                            tiles.first_tile(column / tile_columns) + ptrdiff_t{step} * 2 * tile_bytes(tiles.storage),
                            tile.data());
          exceptions.mend(step, tile.data());
          for (int i = 0; i < std::min(tile_depth, k - step * tile_depth); ++i)
            REQUIRE(tile[sized(bf16_position(column % tile_columns, tiles.place(i)))] ==
                    expected(column, step * tile_depth + i));
        }
      }
    }
    for (int column = 0; column < (n + lane_count - 1) / lane_count * lane_count; ++column)
      for (int at = 0; at < k; ++at)
        REQUIRE(panel_body[(column / lane_count * k + at) * lane_count + column % lane_count] == expected(column, at));
  }
}
