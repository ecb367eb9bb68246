#include "runtime/wire/local_wire.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <thread>
#include <vector>

namespace troupe {
namespace {

micro_batch bulk_of(buffer_pool& pool, uint64_t bytes) {
  micro_batch message;
  message.header.kind = message_kind::bulk;
  message.payload = pool.acquire(bytes);
  return message;
}

TEST_CASE("a local wire hands the receiver the sender's own buffer") {
  auto network = std::make_shared<local_switch>();
  local_wire one(network, 1, 10);
  local_wire two(network, 2, 20);
  buffer_pool pool(1 << 20);
  auto message = bulk_of(pool, 1000);
  const auto* sent = message.payload->data;
  const std::byte* received = nullptr;
  micro_batch_header header;
  two.attach(3, [&](micro_batch arrived) {
    received = arrived.payload->data;
    header = arrived.header;
    CHECK(validate(arrived));
  });
  REQUIRE(one.send({2, 3, 20}, std::move(message)));
  CHECK(received == sent);
  CHECK(header.source_node == 1);
  CHECK(header.source_incarnation == 10);
  CHECK(header.destination_slot == 3);
  CHECK(header.destination_incarnation == 20);
  CHECK(pool.bytes_in_use() == 0);
  CHECK(one.statistics().messages_sent == 1);
  CHECK(two.statistics().bytes_received == 1000);
}

TEST_CASE("a local wire refuses a node or incarnation that is not there") {
  auto network = std::make_shared<local_switch>();
  local_wire one(network, 1, 1);
  buffer_pool pool(1 << 20);
  CHECK(one.send({9, 0, 1}, bulk_of(pool, 8)).failure().code == errc::unavailable);
  CHECK(one.send({1, 0, 2}, bulk_of(pool, 8)).failure().code == errc::unavailable);
  CHECK(pool.bytes_in_use() == 0);
}

TEST_CASE("a later incarnation replaces a node on the local switch, and outlives the old one") {
  auto network = std::make_shared<local_switch>();
  local_wire sender(network, 1, 1);
  auto old_node = std::make_unique<local_wire>(network, 2, 1);
  local_wire new_node(network, 2, 2);
  int received = 0;
  new_node.attach(0, [&](micro_batch) { ++received; });
  CHECK_FALSE(sender.send({2, 0, 1}, {}));
  old_node.reset();
  micro_batch message;
  message.header.kind = message_kind::bulk;
  CHECK(sender.send({2, 0, 2}, std::move(message)));
  CHECK(received == 1);
}

TEST_CASE("a local message to a slot without a receiver is dropped and counted") {
  auto network = std::make_shared<local_switch>();
  local_wire one(network, 1, 1);
  buffer_pool pool(1 << 20);
  one.attach(0, [](micro_batch) {});
  one.detach(0);
  CHECK(one.send({1, 0, 1}, bulk_of(pool, 8)));
  CHECK(one.send({1, 500, 1}, bulk_of(pool, 8)));
  CHECK(one.statistics().messages_dropped == 2);
  CHECK(pool.bytes_in_use() == 0);
}

TEST_CASE("local sequence numbers count per destination and class") {
  auto network = std::make_shared<local_switch>();
  local_wire one(network, 1, 1);
  std::vector<uint64_t> combines;
  std::vector<uint64_t> bulks;
  one.attach(0, [&](micro_batch arrived) {
    (arrived.header.kind == message_kind::bulk ? bulks : combines).push_back(arrived.header.sequence);
  });
  for (int i = 0; i < 3; ++i) {
    for (const auto kind : {message_kind::combine, message_kind::bulk}) {
      micro_batch message;
      message.header.kind = kind;
      message.header.status = combine_status::stale_epoch;  // a refusal needs no payload
      REQUIRE(one.send({1, 0, 1}, std::move(message)));
    }
  }
  CHECK(combines == std::vector<uint64_t>{0, 1, 2});
  CHECK(bulks == std::vector<uint64_t>{0, 1, 2});
}

TEST_CASE("receivers may be replaced while other threads send") {
  auto network = std::make_shared<local_switch>();
  local_wire one(network, 1, 1);
  std::atomic<int> received{0};
  one.attach(0, [&](micro_batch) { ++received; });
  std::vector<std::thread> senders;
  for (int t = 0; t < 3; ++t)
    senders.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        micro_batch message;
        message.header.kind = message_kind::bulk;
        CHECK(one.send({1, 0, 1}, std::move(message)));
      }
    });
  for (int i = 0; i < 200; ++i) one.attach(0, [&](micro_batch) { ++received; });
  for (auto& sender : senders) sender.join();
  CHECK(received == 6000);
}

}  // namespace
}  // namespace troupe
