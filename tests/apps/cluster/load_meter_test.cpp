#include "apps/cluster/load_meter.hpp"

#include <doctest/doctest.h>

#include <string>

using namespace std::chrono_literals;

namespace troupe {
namespace {

const load_meter::clock::time_point begin{};

TEST_CASE("a load that is over within two seconds says nothing") {
  load_meter meter("node 0", 1000, begin);
  CHECK(!meter.add(500, begin + 1s));
  CHECK(!meter.add(500, begin + 1900ms));
}

TEST_CASE("a long load says every two seconds how far it is") {
  load_meter meter("node 3", 8'000'000'000, begin);
  CHECK(!meter.add(1'000'000'000, begin + 1s));
  CHECK(meter.add(1'000'000'000, begin + 2s).value() == "node 3: 25 % of 8.0 GB of weights loaded, 1.0 GB/s");
  CHECK(!meter.add(2'000'000'000, begin + 3s));
  CHECK(meter.add(2'000'000'000, begin + 4s).value() == "node 3: 75 % of 8.0 GB of weights loaded, 1.5 GB/s");
}

TEST_CASE("a load never says that more than all of it is done") {
  load_meter meter("node 0", 0, begin);
  CHECK(meter.add(5'000'000'000, begin + 3s).value().starts_with("node 0: 100 %"));
}

}  // namespace
}  // namespace troupe
