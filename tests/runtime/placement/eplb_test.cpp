#include "runtime/placement/eplb.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "runtime/placement/random.hpp"
#include "tests/runtime/placement/samples.hpp"

namespace troupe {
namespace {

constexpr uint32_t layers = 58;
constexpr uint32_t experts = 256;
constexpr uint32_t loads = 200;

// What goldens/make_eplb_goldens.py says of a load, draw by draw.
std::vector<float> golden_load(uint32_t number) {
  constexpr uint64_t low = (1U << 21) - 1;
  seeded_random random(number + 1);
  std::vector<float> rows(size_t{layers} * experts);
  for (auto& entry : rows) {
    const uint64_t draw = random.next();
    entry = static_cast<float>(((draw & low) * (draw >> 21 & low) * (draw >> 42 & low) >> 43) + 1);
  }
  return rows;
}

struct golden {
  uint32_t counts = 0;
  uint32_t slots = 0;
  double balance = 0;
};
static_assert(sizeof(golden) == 16);

std::vector<golden> read_goldens() {
  std::ifstream in(TROUPE_SOURCE_DIR "/tests/runtime/placement/goldens/eplb_goldens.bin", std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(in), {});
  std::vector<golden> goldens(bytes.size() / sizeof(golden));
  std::memcpy(goldens.data(), bytes.data(), goldens.size() * sizeof(golden));
  return goldens;
}

uint32_t hash(uint32_t so_far, uint32_t number) { return (so_far ^ number) * 16777619U; }
constexpr uint32_t hash_start = 2166136261U;

struct agreement {
  uint32_t layers = 0;
  uint32_t counts = 0;
  uint32_t balances = 0;
  uint32_t maps = 0;
  uint32_t tied = 0;
};

agreement compare(const golden* expected, uint32_t nodes, uint32_t devices) {
  const auto topology = even_topology(nodes, devices / nodes, 288 / devices);
  const std::vector<uint32_t> usable(devices, 288 / devices);
  agreement found;
  for (uint32_t load = 0; load < loads; ++load) {
    const auto rows = golden_load(load);
    const auto slots = solve_eplb(rows, layers, experts, 8, topology, usable, false);
    for (uint32_t layer = 0; layer < layers; ++layer, ++expected) {
      const uint16_t* held = slots.experts.data() + size_t{layer} * 288;
      std::vector<uint32_t> counts(experts);
      uint32_t slot_hash = hash_start;
      for (uint32_t slot = 0; slot < 288; ++slot) {
        ++counts[held[slot]];
        slot_hash = hash(slot_hash, held[slot]);
      }
      uint32_t count_hash = hash_start;
      for (const uint32_t count : counts) count_hash = hash(count_hash, count);
      std::vector<double> received(devices);
      for (uint32_t slot = 0; slot < 288; ++slot)
        received[slot / (288 / devices)] += double{rows[layer * experts + held[slot]]} / counts[held[slot]];
      ++found.layers;
      found.counts += count_hash == expected->counts;
      found.balances += balance_of(received, usable) == doctest::Approx(expected->balance).epsilon(1e-12);
      found.tied += expected->slots == 0;
      found.maps += slot_hash == expected->slots;
    }
  }
  return found;
}

}  // namespace

TEST_CASE("eplb equals the published code on 200 loads at 32 and 144 devices") {
  const auto goldens = read_goldens();
  REQUIRE(goldens.size() == 2 * loads * layers);
  for (const bool large : {false, true}) {
    const auto found = large ? compare(goldens.data() + loads * layers, 18, 144) : compare(goldens.data(), 4, 32);
    CAPTURE(large);
    MESSAGE(found.layers << " layers, " << found.tied << " with a tie");
    CHECK(found.counts == found.layers);
    CHECK(found.balances == found.layers);
    CHECK(found.maps == found.layers - found.tied);
    CHECK(found.tied < found.layers / 4);
  }
}

}  // namespace troupe
