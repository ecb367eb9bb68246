#include "runtime/serving/dispatch_ledger.hpp"

#include <doctest/doctest.h>

#include <algorithm>

namespace troupe {
namespace {

placement_table table_of(uint32_t nodes) {
  placement_request request;
  request.moe_layers = {true};
  request.experts = 8;
  request.redundant_replicas = 1;
  for (uint16_t node = 0; node < nodes; ++node) request.nodes.push_back({node, 0, true});
  return place_linear(request)->table;
}

std::vector<owed_pair> all_pairs() {
  std::vector<owed_pair> pairs;
  for (uint16_t expert = 0; expert < 8; ++expert) pairs.push_back({0, expert, expert});
  return pairs;
}

std::vector<uint64_t> equal_keys() { return std::vector<uint64_t>(8); }

size_t open_count(dispatch_ledger& ledger) {
  return static_cast<size_t>(std::count_if(ledger.entries().begin(), ledger.entries().end(),
                                           [](const outstanding_dispatch& entry) { return entry.id != 0; }));
}

}  // namespace

TEST_CASE("pairs become one dispatch for each destination, the shard's own node preferred") {
  replica_router router;
  const std::vector<live_node> live{{0, 1}, {1, 2}, {2, 3}, {3, 4}};
  router.update(table_of(4), live, 1, replica_selection::first);
  CHECK(router.serves(0, 0, 0) == 1);  // its primary is node 0, its second replica is here
  CHECK(router.serves(0, 2, 0) == 1);
  CHECK(router.serves(0, 4, 0) == 2);
  dispatch_ledger ledger;
  std::vector<owed_pair> stranded;
  ledger.open(0, 1, 0, all_pairs(), equal_keys(), router, std::nullopt, 0, {}, stranded);
  CHECK(stranded.empty());
  CHECK(open_count(ledger) == 3);
}

TEST_CASE("a dead node's pairs go to the replica, and without one they are stranded") {
  replica_router router;
  const std::vector<live_node> three{{0, 1}, {2, 3}, {3, 4}};
  router.update(table_of(4), three, 0, replica_selection::first);
  CHECK(router.serves(0, 2, 0) == 2);
  const std::vector<live_node> two{{0, 1}, {3, 4}};
  router.update(table_of(4), two, 0, replica_selection::first);
  CHECK(!router.serves(0, 2, 0));  // both replicas are gone
  dispatch_ledger ledger;
  std::vector<owed_pair> stranded;
  ledger.open(0, 1, 0, all_pairs(), equal_keys(), router, std::nullopt, 0, {}, stranded);
  CHECK(stranded.size() == 2);
}

TEST_CASE("a retry avoids the node that failed") {
  replica_router router;
  const std::vector<live_node> live{{0, 1}, {1, 1}};
  router.update(table_of(2), live, 0, replica_selection::first);
  dispatch_ledger ledger;
  std::vector<owed_pair> stranded;
  ledger.open(0, 1, 0, all_pairs(), equal_keys(), router, uint16_t{0}, 1, {}, stranded);
  REQUIRE(open_count(ledger) == 1);
  CHECK(ledger.entries().front().to.node == 1);
}

TEST_CASE("an answer finds its dispatch once, and entries are reused") {
  replica_router router;
  const std::vector<live_node> live{{0, 1}};
  router.update(table_of(1), live, 0, replica_selection::first);
  dispatch_ledger ledger;
  std::vector<owed_pair> stranded;
  for (uint64_t step = 1; step <= 100; ++step) {
    ledger.open(0, step, 0, all_pairs(), equal_keys(), router, std::nullopt, 0, {}, stranded);
    auto* entry = ledger.find(static_cast<uint32_t>(step));
    REQUIRE(entry != nullptr);
    ledger.close(*entry);
    CHECK(ledger.find(static_cast<uint32_t>(step)) == nullptr);
  }
  CHECK(ledger.entries().size() == 1);
}

TEST_CASE("which replica serves a row depends on the selection, and on nothing but the row's own key") {
  auto table = table_of(4);  // expert 0: nodes 0 and 1
  const std::vector<live_node> live{{0, 1}, {1, 2}, {2, 3}, {3, 4}};
  const auto rows_at_node_1 = [&](uint16_t own, replica_selection selection) {
    replica_router router;
    router.update(table, live, own, selection);
    int rows = 0;
    for (int position = 0; position < 1000; ++position) {
      const uint64_t key = row_key(request_id{7}, position, 0, 0);
      const auto node = router.serves(0, 0, key);
      REQUIRE(node == router.serves(0, 0, key));
      rows += node == uint16_t{1} ? 1 : 0;
    }
    return rows;
  };
  CHECK(rows_at_node_1(3, replica_selection::first) == 0);
  CHECK(rows_at_node_1(1, replica_selection::first) == 1000);
  CHECK(rows_at_node_1(1, replica_selection::nearest) == 1000);
  for (const auto selection : {replica_selection::nearest, replica_selection::even, replica_selection::weighted}) {
    CHECK(rows_at_node_1(3, selection) > 400);  // both are alike from there
    CHECK(rows_at_node_1(3, selection) < 600);
  }
  table.shares.assign(table.nodes.size(), 0);
  table.shares[0] = 6554;  // of expert 0 at node 0: a tenth
  table.shares[1] = 58981;
  CHECK(rows_at_node_1(3, replica_selection::weighted) > 850);
  CHECK(rows_at_node_1(3, replica_selection::weighted) < 950);
  CHECK(rows_at_node_1(0, replica_selection::weighted) > 850);  // also against its own
}

TEST_CASE("an epoch is taken up when no answer is awaited under an older one") {
  replica_router router;
  const std::vector<live_node> live{{0, 1}, {1, 2}};
  router.update(table_of(2), live, 0, replica_selection::first);
  dispatch_ledger ledger;
  std::vector<owed_pair> stranded;
  ledger.open(0, 1, 0, all_pairs(), equal_keys(), router, std::nullopt, 0, {}, stranded);
  CHECK(ledger.oldest_epoch(9) == 9);  // nothing has been sent
  auto& entry = ledger.entries().front();
  entry.sent = true;
  entry.epoch = 4;
  CHECK(ledger.oldest_epoch(9) == 4);
  ledger.close(entry);
  CHECK(ledger.oldest_epoch(9) == 9);
}

}  // namespace troupe
