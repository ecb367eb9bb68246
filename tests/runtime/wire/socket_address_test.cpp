#include "runtime/wire/socket_address.hpp"

#include <doctest/doctest.h>

#include <utility>

namespace troupe {

TEST_CASE("addresses of this machine alone are told from others") {
  for (const auto& [text, here] : {std::pair{"127.0.0.1:0", true},
                                   {"127.3.2.1:80", true},
                                   {"[::1]:80", true},
                                   {"10.0.0.1:80", false},
                                   {"0.0.0.0:80", false},
                                   {"[fe80::1]:80", false}}) {
    CAPTURE(text);
    const auto address = parse_address(text);
    REQUIRE(address);
    CHECK(is_loopback(*address) == here);
  }
}

}  // namespace troupe
