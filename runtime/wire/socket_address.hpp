// "host:port" as a socket address, and back.
#pragma once

#include <sys/socket.h>

#include <string>
#include <string_view>

#include "runtime/error.hpp"

namespace troupe {

struct socket_address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// Numbers ("10.0.0.1:7000", "[::1]:7000") are parsed at once; a host name is looked up, which may
// block the calling thread.
// Fails: invalid_argument (not of that form, or no such host).
result<socket_address> parse_address(std::string_view text);

// 127.0.0.0/8 or ::1.
bool is_loopback(const socket_address& address);

std::string to_string(const sockaddr_storage& address);

}  // namespace troupe
