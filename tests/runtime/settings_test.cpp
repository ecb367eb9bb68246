// The settings that the head hands to each node.
#include "runtime/serving/settings.hpp"

#include <doctest/doctest.h>

namespace troupe {

TEST_CASE("links and transports reach a node as the head has them, to the last bit") {
  serving_settings settings;
  settings.model = "somewhere";
  settings.transports = "tcp";
  settings.links = {{-1, -1, {.latency_us = 0.1, .bandwidth_mb_s = 1250.3, .jitter_us = 1.0 / 3}},
                    {0, 3, {.latency_us = 2000}}};
  const auto read = parse_settings(settings.to_json());
  REQUIRE(read);
  CHECK(read->links == settings.links);
  CHECK(read->transports == "tcp");
}

TEST_CASE("settings with wrong links or without them are refused") {
  serving_settings settings;
  settings.nodes = 2;
  settings.links = {{0, 2, {.latency_us = 5}}};
  CHECK(parse_settings(settings.to_json()).failure().code == errc::invalid_argument);
  settings.links.clear();
  std::string without = settings.to_json();
  without.replace(without.find("\"links\""), 7, "\"lonks\"");
  CHECK(parse_settings(without).failure().code == errc::malformed);
}

}  // namespace troupe
