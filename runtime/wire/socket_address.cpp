#include "runtime/wire/socket_address.hpp"

#include <netdb.h>
#include <netinet/in.h>

#include <cstring>

namespace troupe {

result<socket_address> parse_address(std::string_view text) {
  const auto refuse = [&](const char* why) {
    return error{errc::invalid_argument, "'" + std::string(text) + "' is not an address: " + why +
                                             "; write HOST:PORT, an IPv6 host in square brackets"};
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return refuse("it has no port");
  std::string host(text.substr(0, colon));
  const std::string port(text.substr(colon + 1));
  if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != std::string::npos ||
      std::stoul(port) > 65535)
    return refuse("its port is not a number from 0 to 65535");
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (host.empty()) return refuse("it has no host");

  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int failed = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); failed != 0)
    return refuse(gai_strerror(failed));
  socket_address out;
  std::memcpy(&out.storage, found->ai_addr, found->ai_addrlen);
  out.length = found->ai_addrlen;
  freeaddrinfo(found);
  return out;
}

bool is_loopback(const socket_address& address) {
  if (address.storage.ss_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address.get())->sin6_addr);
  return address.storage.ss_family == AF_INET &&
         ntohl(reinterpret_cast<const sockaddr_in*>(address.get())->sin_addr.s_addr) >> 24U == 127;
}

std::string to_string(const sockaddr_storage& address) {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  const bool six = address.ss_family == AF_INET6;
  const auto length = static_cast<socklen_t>(six ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof host, port, sizeof port,
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "unknown address";
  return (six ? "[" + std::string(host) + "]" : std::string(host)) + ":" + port;
}

}  // namespace troupe
