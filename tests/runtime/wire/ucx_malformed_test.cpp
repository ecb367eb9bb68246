// What connects to a wire and does not keep to its protocol.
#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/runtime/wire/liar.hpp"

namespace troupe {
namespace {

using namespace wire_test;

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
  CHECK_MESSAGE(log.has("speaks wire version 9, this one 3; run the same build on all nodes"), log.text());
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
    const char* what = other_order ? "has the other byte order" : "speaks wire version 9, this one 3; run the same";
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
