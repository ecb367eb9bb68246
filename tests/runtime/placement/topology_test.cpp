#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "runtime/placement/random.hpp"
#include "runtime/placement/topology_file.hpp"

namespace troupe {
namespace {

std::string why_refused(const std::string& text) {
  const auto topology = parse_topology(text, "a.yaml");
  return topology ? "it was not" : topology.failure().message;
}

bool says(const std::string& text, const char* part) {
  INFO(text);
  const bool found = text.find(part) != std::string::npos;
  CHECK(found);
  return found;
}

}  // namespace

TEST_CASE("the shipped topologies are those that they say") {
  struct shape {
    const char* name;
    size_t nodes, devices;
    uint32_t slots;
  };
  for (const auto& expected : {shape{"prefill_unit", 4, 32, 9}, shape{"decode_unit", 18, 144, 2},
                               shape{"single_node", 1, 8, 36}, shape{"this_machine", 4, 4, 16}}) {
    CAPTURE(expected.name);
    const auto read = read_topology(std::string(TROUPE_SOURCE_DIR "/config/topologies/") + expected.name + ".yaml");
    REQUIRE_MESSAGE(read, (read ? "" : read.failure().message));
    CHECK(read->nodes.size() == expected.nodes);
    CHECK(read->devices.size() == expected.devices);
    for (size_t i = 0; i < read->devices.size(); ++i) {
      CHECK(read->devices[i].slots == expected.slots);
      CHECK(read->devices[i].node == i / (expected.devices / expected.nodes));
    }
  }
}

TEST_CASE("devices may be listed one by one") {
  const auto read = parse_topology(
      "nodes: 2\nslots: 3\nmemory_gb: 1.5\nnode_slots: 5\n"
      "devices:\n  - {node: 1}\n  - {node: 0, slots: 7, memory_gb: 0}\n",
      "a.yaml");
  REQUIRE_MESSAGE(read, (read ? "" : read.failure().message));
  REQUIRE(read->devices.size() == 2);
  CHECK(read->devices[0].node == 1);
  CHECK(read->devices[0].slots == 3);
  CHECK(read->devices[0].memory_bytes == 1'500'000'000);
  CHECK(read->devices[1].slots == 7);
  CHECK(read->devices[1].memory_bytes == 0);
  CHECK(read->nodes[1].slots == 5);
}

TEST_CASE("a bad topology is refused with its line, and an unknown key with the nearest valid one") {
  says(why_refused("nodes: 2\ndevices_per_node: 2\nslot: 3\n"),
       "line 3: there is no key `slot`; did you mean `slots`?");
  says(why_refused("nodes: two\n"), "line 1: `nodes` must be a whole number");
  says(why_refused("nodes: 0\ndevices_per_node: 2\n"), "must be 1 to 65534");
  says(why_refused("nodes: 60000\ndevices_per_node: 60000\n"), "at most 65534 devices");
  says(why_refused("nodes: 2\n"), "either `devices_per_node` or a list");
  says(why_refused("devices_per_node: 2\n"), "`nodes` is missing");
  says(why_refused("nodes: 2\ndevices: [{node: 2}]\n"), "`node` must be 0 to 1");
  says(why_refused("nodes: 2\ndevices: 7\n"), "list of devices");
  says(why_refused("nodes: 2\nmemory_gb: .nan\ndevices_per_node: 1\n"), "`memory_gb` must be 0 to");
  says(why_refused("- 1\n- 2\n"), "`key: value` lines");
  says(why_refused("nodes: [\n"), "this is no YAML");
  says(why_refused(""), "`key: value` lines");
  CHECK(read_topology("no/such.yaml").failure().code == errc::not_found);
}

TEST_CASE("damaged topologies give sentences and never a crash") {
  std::ifstream in(TROUPE_SOURCE_DIR "/config/topologies/prefill_unit.yaml");
  const std::string good(std::istreambuf_iterator<char>(in), {});
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    CAPTURE(seed);
    seeded_random random(seed);
    auto text = good;
    for (uint32_t i = 0; i <= random.below(5); ++i)
      text[random.below(static_cast<uint32_t>(text.size()))] = static_cast<char>(random.below(128));
    const auto read = parse_topology(text, "a.yaml");
    if (!read) CHECK_FALSE(read.failure().message.empty());
  }
}

}  // namespace troupe
