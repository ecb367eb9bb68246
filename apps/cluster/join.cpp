#include "apps/cluster/join.hpp"

#include <caf/io/all.hpp>

#include <chrono>
#include <cstdlib>
#include <thread>

namespace troupe {

result<join_address> parse_join_address(const std::string& text) {
  const auto colon = text.rfind(':');
  const error refused{errc::invalid_argument,
                      "--join takes HOST:PORT, as `troupe serve` prints it; got '" + text + "'"};
  if (colon == std::string::npos || colon == 0) return refused;
  char* end = nullptr;
  const long port = std::strtol(text.c_str() + colon + 1, &end, 10);
  if (*end != '\0' || port < 1 || port > 65535) return refused;
  return join_address{text.substr(0, colon), static_cast<uint16_t>(port)};
}

result<coordinator_actor> reach_coordinator(caf::actor_system& system, const join_address& address, int patience_s) {
  std::string why;
  for (int tries = 0; tries < patience_s * 10; ++tries) {
    auto found = system.middleman().remote_actor<coordinator_actor>(address.host, address.port);
    if (found) return *found;
    why = system.render(found.error());
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return error{errc::unavailable, "no head answers at " + address.host + ":" + std::to_string(address.port) + " (" +
                                      why + "); start `troupe serve` first, or check the address"};
}

}  // namespace troupe
