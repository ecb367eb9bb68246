// Links in virtual time: exact arrivals between two wires, and clusters whose answers do not change.
#include <doctest/doctest.h>

#include <vector>

#include "tests/simulation/simulation_fixtures.hpp"

namespace troupe::testing {

using std::chrono::microseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

namespace {

struct arrival {
  uint64_t tag = 0;
  nanoseconds after{0};  // since the start
  bool operator==(const arrival&) const = default;
};

}  // namespace

TEST_CASE("a modelled link delivers at the nanosecond that its bandwidth, latency and priorities give") {
  virtual_time time;
  const auto network = std::make_shared<modelled_network>(time, link_table({.latency_us = 50, .bandwidth_mb_s = 1}), 1);
  modelled_wire sender(network, 0, 0, 1);
  modelled_wire receiver(network, 1, 1, 1);
  buffer_pool pool(64 << 20);
  const auto start = time.now();
  std::vector<arrival> arrivals;
  receiver.attach(0, [&](micro_batch message) { arrivals.push_back({message.header.step, time.now() - start}); });
  const auto send = [&](uint64_t tag, uint64_t payload_bytes) {
    micro_batch message;
    message.header.kind = payload_bytes > 0 ? message_kind::bulk : message_kind::combine;
    message.header.status = combine_status::stale_epoch;  // a combine without rows
    message.header.step = tag;
    if (payload_bytes > 0) message.payload = pool.acquire(payload_bytes);
    message.header.payload_bytes = payload_bytes;
    REQUIRE(sender.send({1, 0, 1}, std::move(message)));
  };
  // Three chunks of bulk: 512 KiB, 512 KiB and the header with one byte more.
  const uint64_t chunk = 512 << 10;
  send(1, 2 * chunk + 1);
  time.after(microseconds(10), 0, [&] { send(2, 0); });
  time.after(microseconds(20), 0, [&] { send(3, 0); });
  while (!time.empty()) time.step();
  const uint64_t header = sizeof(micro_batch_header);
  CHECK(arrivals == std::vector<arrival>{{2, microseconds(chunk + header + 50)},
                                         {3, microseconds(chunk + 2 * header + 50)},
                                         {1, microseconds(2 * chunk + 1 + 3 * header + 50)}});
  CHECK(network->counters(0, 1).messages == 3);
  CHECK(network->counters(0, 1).busy_ns == 1000 * (2 * chunk + 1 + 3 * header));
  CHECK(network->counters(1, 0).messages == 0);
  CHECK(pool.bytes_in_use() == 0);
}

TEST_CASE("slow, uneven links with jitter change when tokens come, not which") {
  auto slow = t1_options(3);
  slow.settings.links = {{-1, -1, {.latency_us = 300, .bandwidth_mb_s = 20, .jitter_us = 200}},
                         {0, 2, {.latency_us = 3000, .bandwidth_mb_s = 1}}};
  std::vector<nanoseconds> took;
  for (const auto& options : {t1_options(3), slow}) {
    simulated_cluster cluster(t1_model(), options);
    uint64_t stamped_otherwise = 0;  // an answer must not keep the stamp of its request
    cluster.network().observe([&](const micro_batch_header& header, const endpoint&) {
      const nanoseconds now = cluster.scheduler().time().now().time_since_epoch();
      stamped_otherwise += header.send_time_ns == static_cast<uint64_t>(now.count()) ? 0 : 1;
    });
    REQUIRE(cluster.start());
    const auto begin = cluster.scheduler().time().now();
    for (uint32_t i = 0; i < 12; ++i) cluster.submit(mixed_request(i));
    REQUIRE(cluster.run_until([&] { return cluster.all_ended(); }, seconds(60)));
    took.push_back(cluster.scheduler().time().now() - begin);
    for (uint32_t i = 0; i < 12; ++i) CHECK(result_of(*cluster.streams()[i]) == alone(i));
    CHECK(cluster.network().counters(0, 2).messages > 0);
    CHECK(stamped_otherwise == 0);
  }
  CHECK(took[1] > 5 * took[0]);
}

}  // namespace troupe::testing
