// Fragments of bulk from a peer that does not keep to the protocol.
#include <doctest/doctest.h>

#include <functional>
#include <vector>

#include "tests/runtime/wire/liar.hpp"

namespace troupe {
namespace {

using namespace wire_test;

// A message of two and a half fragments, and its parts.
micro_batch_header bulk_header(uint64_t sequence, uint64_t offset) {
  auto header = liar::data_header(10'000);
  header.sequence = sequence;
  header.detail = offset;
  return header;
}

TEST_CASE("fragments make up their message whatever order they come in") {
  liar peer;
  peer.introduce();
  peer.send(bulk_header(0, 8192), std::vector<char>(1808));
  peer.send(bulk_header(0, 0), std::vector<char>(4096));
  CHECK(peer.until([&] { return peer.node->counters().assemblies == 1; }));
  CHECK(peer.delivered == 0);
  peer.send(bulk_header(1, 0), std::vector<char>(4096));  // of another message between them
  peer.send(bulk_header(0, 4096), std::vector<char>(4096));
  CHECK(peer.until([&] { return peer.delivered == 1; }));
  CHECK(peer.node->counters().assemblies == 1);
}

TEST_CASE("a fragment that cannot be one is refused, with what came of its message, and the wire goes on") {
  struct wrong_piece {
    const char* what;
    uint64_t offset;
    size_t size;
    std::function<void(micro_batch_header&)> change;
  };
  const std::vector<wrong_piece> pieces{
      {"between two fragments", 100, 4096, {}},
      {"beyond the end", 12288, 1000, {}},
      {"far beyond the end", uint64_t{1} << 62U, 4096, {}},
      {"too short", 4096, 4095, {}},
      {"longer than a fragment", 4096, 5904, {}},
      {"a last one that is too long", 8192, 4096, {}},
      {"a repeated one", 0, 4096, {}},
      {"of another length in all", 4096, 4096, [](micro_batch_header& header) { header.payload_bytes = 20'000; }},
      {"of a length that needs none", 0, 1000, [](micro_batch_header& header) { header.payload_bytes = 4096; }},
      {"to another slot", 4096, 4096, [](micro_batch_header& header) { header.destination_slot = 6; }},
      {"of another step", 4096, 4096, [](micro_batch_header& header) { header.step = 9; }},
      {"an undivided message with an offset", 4096, 10'000, {}},
  };
  buffer_pool memory(uint64_t{1} << 20U);
  {
    liar peer([&](ucx_wire_options& options) { options.classes[bulk_class].receive_pool = &memory; });
    peer.introduce();
    uint64_t sequence = 0;
    for (const auto& one : pieces) {
      CAPTURE(one.what);
      const uint64_t malformed = peer.node->counters().malformed;
      peer.send(bulk_header(sequence, 0), std::vector<char>(4096));
      REQUIRE(peer.until([&] { return peer.node->counters().assemblies == 1; }));
      auto header = bulk_header(sequence, one.offset);
      if (one.change) one.change(header);
      peer.send(header, std::vector<char>(one.size));
      CHECK(peer.until([&] { return peer.node->counters().malformed == malformed + 1; }));
      if (one.size != 10'000) {  // that one is a message of its own, and its fate no other's
        CHECK(peer.node->counters().assemblies == 0);
        const uint64_t stale = peer.node->counters().stale;
        peer.send(bulk_header(sequence, 8192), std::vector<char>(1808));  // the rest comes too late
        CHECK(peer.until([&] { return peer.node->counters().stale == stale + 1; }));
        CHECK(memory.bytes_in_use() == 0);
      }
      ++sequence;
    }
    CHECK(peer.delivered == 0);
    for (const uint64_t offset : {0, 4096, 8192})
      peer.send(bulk_header(sequence, offset), std::vector<char>(offset == 8192 ? 1808 : 4096));
    CHECK(peer.until([&] { return peer.delivered == 1; }));
  }
  CHECK(memory.bytes_in_use() == 0);
}

TEST_CASE("a message in fragments that is larger than the limits takes no memory") {
  liar peer([](ucx_wire_options& options) { options.payload_bytes_max = 200'000; });
  peer.introduce();
  for (const uint64_t bytes : {uint64_t{200'001}, uint64_t{1} << 60U, ~uint64_t{0}}) {
    auto header = liar::data_header(bytes);
    const uint64_t malformed = peer.node->counters().malformed;
    peer.send(header, std::vector<char>(4096));
    CHECK(peer.until([&] { return peer.node->counters().malformed == malformed + 1; }));
  }
  CHECK(peer.node->counters().assemblies == 0);
}

TEST_CASE("a peer that begins message after message and ends none is bounded by the class's memory") {
  buffer_pool memory(uint64_t{128} << 10U);  // eight of them
  liar peer([&](ucx_wire_options& options) {
    options.classes[bulk_class].receive_pool = &memory;
    options.classes[bulk_class].held_max = 5;
  });
  peer.introduce();
  for (uint64_t sequence = 0; sequence < 100; ++sequence) peer.send(bulk_header(sequence, 0), std::vector<char>(4096));
  CHECK(peer.until([&] { return peer.node->counters().overflowed == 87; }));
  CHECK(peer.node->counters().assemblies == 13);
  peer.node->disconnect(2);
  CHECK(peer.until([&] { return peer.node->counters().assemblies == 0 && memory.bytes_in_use() == 0; }));
  peer.node.reset();
}

}  // namespace
}  // namespace troupe
