// What connects to a wire and does not keep to its protocol.
#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "runtime/wire/ucx_greeting.hpp"
#include "runtime/wire/ucx_link.hpp"
#include "tests/runtime/wire/fixture.hpp"
#include "tests/runtime/wire/raw_ucx.hpp"

namespace troupe {
namespace {

using namespace wire_test;

constexpr uint64_t liar_session = 77;
constexpr uint64_t fragment_bytes = 4096;

// A stranger with the protocol's messages at hand, connected to this test's node 1, incarnation 11.
struct liar {
  event_log events;
  std::atomic<int> delivered{0};
  std::unique_ptr<ucx_wire> node;
  raw_ucx ucx{"posix,cma,tcp"};
  greeting heard;

  explicit liar(const std::function<void(ucx_wire_options&)>& adjust = {}) {
    auto options = options_of(1, 11, &events);
    if (adjust) adjust(options);
    node = wire_of(options);
    node->attach(5, [this](micro_batch) { ++delivered; });
    ucx.on_message(message_id_greeting, &liar::on_greeting, this);
    ucx.connect(node->listen_address());
  }
  static ucs_status_t on_greeting(void* argument, const void* header, size_t size, void*, size_t,
                                  const ucp_am_recv_param_t*) {
    if (auto read = read_greeting(header, size)) static_cast<liar*>(argument)->heard = *read;
    return UCS_OK;
  }

  static greeting hello() {
    greeting out;
    out.phase = greeting_phase::hello;
    out.node = 2;
    out.incarnation = 22;
    out.destination_node = 1;
    out.destination_incarnation = 11;
    out.session = liar_session;
    out.bulk_chunk_bytes = fragment_bytes;
    return out;
  }
  void say(greeting message, bool sealed = true) {
    if (sealed) seal(message);
    say_bytes(&message, sizeof message);
  }
  void say_bytes(const void* bytes, size_t size) { say_to(ucx, bytes, size); }
  static void say_to(raw_ucx& peer, const void* bytes, size_t size) {
    peer.send(message_id_greeting, bytes, size, nullptr, 0, UCP_AM_SEND_FLAG_EAGER | UCP_AM_SEND_FLAG_REPLY);
  }
  void introduce() {
    say(hello());
    REQUIRE(until([&] { return heard.phase == greeting_phase::welcome; }));
    auto ready = hello();
    ready.phase = greeting_phase::ready;
    ready.destination_session = heard.session;
    say(ready);
    REQUIRE(until([&] { return events.count(2, 22, true) == 1; }));
  }
  static micro_batch_header data_header(uint64_t payload_bytes) {
    micro_batch_header header;
    header.kind = message_kind::bulk;
    header.source_node = 2;
    header.source_incarnation = 22;
    header.destination_slot = 5;
    header.destination_incarnation = 11;
    header.session = liar_session;
    header.payload_bytes = payload_bytes;
    return header;
  }
  void send(micro_batch_header header, const std::vector<char>& payload, bool sealed = true) {
    if (sealed) {
      micro_batch message;
      message.header = header;
      seal(message, false);
      header = message.header;
    }
    const uint32_t flags = payload.size() >= 65536 ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
    ucx.send(message_id_data, &header, sizeof header, payload.data(), payload.size(), flags);
  }
  bool until(const std::function<bool()>& condition) {
    return eventually([&] {
      ucx.progress();
      return condition();
    });
  }
};

TEST_CASE("a stranger that introduces itself properly is heard") {
  liar peer;
  peer.introduce();
  peer.send(liar::data_header(100), std::vector<char>(100));
  peer.send(liar::data_header(100'000), std::vector<char>(100'000));
  CHECK(peer.until([&] { return peer.delivered == 2; }));
}

TEST_CASE("data with wrong headers is dropped and counted, and the wire goes on") {
  liar peer;
  peer.introduce();
  std::vector<micro_batch_header> wrong;
  auto header = liar::data_header(100);
  header.magic = 1;
  wrong.push_back(header);
  header = liar::data_header(100);
  header.kind = static_cast<message_kind>(9);
  wrong.push_back(header);
  wrong.push_back(liar::data_header(99));
  wrong.push_back(liar::data_header(uint64_t{1} << 60U));
  header = liar::data_header(100);
  header.kind = message_kind::dispatch;
  header.hidden = 64;
  header.row_count = 65535;
  header.pair_count = 0xffffffffU;
  wrong.push_back(header);
  header = liar::data_header(100);
  header.flags = 1;
  header.payload_checksum = 12345;
  wrong.push_back(header);
  for (const auto& one : wrong) peer.send(one, std::vector<char>(100));
  peer.send(liar::data_header(100), std::vector<char>(100), false);  // no checksum
  const char junk[20] = "junk";
  peer.ucx.send(message_id_data, junk, sizeof junk, nullptr, 0, UCP_AM_SEND_FLAG_EAGER);
  const uint64_t malformed = wrong.size() + 2;
  CHECK(peer.until([&] { return peer.node->counters().malformed == malformed; }));
  peer.send(liar::data_header(99), std::vector<char>(100'000));  // and a large one
  CHECK(peer.until([&] { return peer.node->counters().malformed == malformed + 1; }));
  CHECK(peer.delivered == 0);
  peer.send(liar::data_header(100), std::vector<char>(100));
  CHECK(peer.until([&] { return peer.delivered == 1; }));
}

TEST_CASE("data larger than the limits is refused before memory is taken for it") {
  liar peer([](ucx_wire_options& options) { options.payload_bytes_max = 200'000; });
  peer.introduce();
  peer.send(liar::data_header(300'000), std::vector<char>(300'000));
  CHECK(peer.until([&] { return peer.node->counters().malformed == 1; }));
  peer.send(liar::data_header(200'000), std::vector<char>(200'000));
  CHECK(peer.until([&] { return peer.delivered == 1; }));
}

TEST_CASE("data of another node, incarnation or session is dropped as stale") {
  liar peer;
  peer.send(liar::data_header(10), std::vector<char>(10));  // before it has said who it is
  CHECK(peer.until([&] { return peer.node->counters().stale == 1; }));
  peer.introduce();
  auto header = liar::data_header(10);
  header.source_node = 3;
  peer.send(header, std::vector<char>(10));
  header = liar::data_header(10);
  header.source_incarnation = 21;
  peer.send(header, std::vector<char>(10));
  header = liar::data_header(10);
  header.destination_incarnation = 10;
  peer.send(header, std::vector<char>(10));
  header = liar::data_header(100'000);
  header.session = liar_session - 1;
  peer.send(header, std::vector<char>(100'000));
  CHECK(peer.until([&] { return peer.node->counters().stale == 5; }));
  CHECK(peer.delivered == 0);
}

micro_batch patterned_nothing() {
  micro_batch message;
  message.header.kind = message_kind::bulk;
  return message;
}

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

TEST_CASE("lost and repeated headers show as gaps in the sequence") {
  liar peer;
  peer.introduce();
  for (const uint64_t sequence : {0, 1, 3, 3}) {
    auto header = liar::data_header(8);
    header.sequence = sequence;
    peer.send(header, std::vector<char>(8));
  }
  CHECK(peer.until([&] { return peer.delivered == 4; }));
  CHECK(peer.node->counters().sequence_gaps == 2);
}

TEST_CASE("a stranger's malformed greetings end its connection and nobody else's") {
  std::mt19937_64 random(1);
  for (int kind = 0; kind < 6; ++kind) {
    CAPTURE(kind);
    liar peer([](ucx_wire_options& options) { options.handshake_timeout_ms = 2000; });
    auto message = liar::hello();
    switch (kind) {
      case 0: peer.say(message, false); break;  // no checksum
      case 1: peer.say_bytes("hi", 2); break;
      case 2: {
        std::vector<char> noise(8000);
        for (auto& byte : noise) byte = static_cast<char>(random());
        peer.say_bytes(noise.data(), noise.size());
        break;
      }
      case 3:
        message.session = 0;
        peer.say(message);
        break;
      case 4:
        message.bulk_chunk_bytes = 0;
        peer.say(message);
        break;
      default: break;  // says nothing at all
    }
    CHECK(peer.until([&] { return peer.ucx.failed(); }));
    CHECK(peer.node->counters().malformed == (kind < 5 ? 1 : 0));
    CHECK(peer.node->counters().peers_up == 0);
  }
}

TEST_CASE("greetings out of turn are ignored") {
  liar peer;
  auto message = liar::hello();
  for (const auto phase : {greeting_phase::welcome, greeting_phase::ready, greeting_phase::bye, greeting_phase::ping}) {
    message.phase = phase;
    peer.say(message);
  }
  peer.introduce();
  peer.say(liar::hello());  // again
  message.phase = greeting_phase::bye;
  message.session = 1;  // of another session
  peer.say(message);
  peer.send(liar::data_header(100), std::vector<char>(100));
  CHECK(peer.until([&] { return peer.delivered == 1; }));
  CHECK(peer.events.count(2, 22, false) == 0);
}

TEST_CASE("a greeting of another version is told so") {
  const captured_log log;
  liar peer;
  auto message = liar::hello();
  message.version = 9;
  peer.say(message, false);  // its checksum may be elsewhere
  REQUIRE(peer.until([&] { return peer.heard.phase == greeting_phase::refuse; }));
  CHECK(peer.heard.reason == refusal::wrong_version);
  CHECK(peer.node->counters().refused_greetings == 1);
  CHECK(peer.until([&] { return peer.ucx.failed() && peer.node->counters().links == 0; }));
  CHECK_MESSAGE(log.has("node 2 at 127.0.0.1:"), log.text());
  CHECK_MESSAGE(log.has("speaks wire version 9, this one 2; run the same build on all nodes"), log.text());
}

greeting reversed(greeting of) {
  of.magic = __builtin_bswap32(of.magic);
  of.version = __builtin_bswap16(of.version);
  of.node = __builtin_bswap16(of.node);
  return of;
}

TEST_CASE("a greeting of the other byte order is told so") {
  const captured_log log;
  liar peer;
  peer.say(reversed(liar::hello()), false);
  REQUIRE(peer.until([&] { return peer.heard.phase == greeting_phase::refuse; }));
  CHECK(peer.heard.reason == refusal::wrong_byte_order);
  CHECK(peer.until([&] { return peer.ucx.failed() && peer.node->counters().links == 0; }));
  CHECK_MESSAGE(log.has("node 2 at 127.0.0.1:"), log.text());
  CHECK_MESSAGE(log.has("has the other byte order"), log.text());
}

TEST_CASE("a node that finds another version or byte order where it connects says so and tries no more") {
  for (const bool other_order : {false, true}) {
    CAPTURE(other_order);
    const captured_log log;
    raw_ucx stranger("posix,cma,tcp");
    bool asked = false;
    stranger.on_message(
        message_id_greeting,
        [](void* heard, const void*, size_t, void*, size_t, const ucp_am_recv_param_t*) {
          *static_cast<bool*>(heard) = true;
          return UCS_OK;
        },
        &asked);
    const std::string address = stranger.listen();
    event_log events;
    const auto node = wire_of(options_of(1, 11, &events));
    REQUIRE(node->connect(2, 22, address));
    REQUIRE(eventually([&] {
      stranger.progress();
      return asked;
    }));
    greeting refusal_message;
    refusal_message.phase = greeting_phase::refuse;
    refusal_message.reason = refusal::wrong_version;
    refusal_message.node = 2;
    if (other_order) {
      refusal_message = reversed(refusal_message);
    } else {
      refusal_message.version = 9;
    }
    liar::say_to(stranger, &refusal_message, sizeof refusal_message);
    CHECK(eventually([&] {
      stranger.progress();
      return events.count(2, 22, false) == 1 && node->counters().links == 0;
    }));
    const char* what = other_order ? "has the other byte order" : "speaks wire version 9, this one 2; run the same";
    CHECK_MESSAGE(events.has_reason(what), events.last_reason());
    CHECK_MESSAGE(log.has("node 2 at " + address + " " + what), log.text());
    CHECK(node->send({2, 5, 22}, patterned_nothing()).failure().code == errc::unavailable);
    CHECK(node->counters().reconnections == 0);
  }
}

TEST_CASE("a node that this one disconnected connects again on purpose only") {
  liar peer;
  peer.introduce();
  peer.node->disconnect(2);
  REQUIRE(peer.until([&] { return peer.ucx.failed(); }));
  const auto knock = [&](uint16_t flags) {
    raw_ucx ucx("posix,cma,tcp");
    peer.heard = {};
    ucx.on_message(message_id_greeting, &liar::on_greeting, &peer);
    ucx.connect(peer.node->listen_address());
    auto message = liar::hello();
    message.flags = flags;
    message.session = liar_session + 1;
    seal(message);
    liar::say_to(ucx, &message, sizeof message);
    REQUIRE(eventually([&] {
      ucx.progress();
      return peer.heard.phase != greeting_phase{};
    }));
    return peer.heard;
  };
  const auto refused = knock(greeting::flag_automatic);
  CHECK(refused.phase == greeting_phase::refuse);
  CHECK(refused.reason == refusal::parted);
  CHECK(knock(0).phase == greeting_phase::welcome);
}

TEST_CASE("a greeting survives its encoding, and every damaged byte is noticed") {
  auto message = liar::hello();
  seal(message);
  const auto read = read_greeting(&message, sizeof message);
  REQUIRE(read);
  CHECK(read->session == liar_session);
  for (size_t i = 0; i < sizeof message; ++i) {
    greeting damaged = message;
    reinterpret_cast<unsigned char*>(&damaged)[i] ^= 0x10U;
    CHECK_FALSE(read_greeting(&damaged, sizeof damaged));
  }
  auto reversed = message;
  reversed.magic = __builtin_bswap32(greeting::magic_value);
  CHECK(read_greeting(&reversed, sizeof reversed).failure().message.find("big-endian") != std::string::npos);
}

}  // namespace
}  // namespace troupe
