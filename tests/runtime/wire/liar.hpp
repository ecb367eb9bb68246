// What the tests of the UCX wire lie with: a stranger that has the protocol's messages at hand.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/wire/ucx_greeting.hpp"
#include "runtime/wire/ucx_link.hpp"
#include "tests/runtime/wire/fixture.hpp"
#include "tests/runtime/wire/raw_ucx.hpp"

namespace troupe::wire_test {

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

}  // namespace troupe::wire_test
