// One client's TCP connection: requests in, one after the other; responses out.
//
// Made by the server's acceptor, it lives as long as an operation on its socket or a generation of its
// own is pending. All its work runs on the strand of the socket's executor. Internal to apps/http.
#pragma once

#include <boost/asio/ip/tcp.hpp>

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "apps/http/server.hpp"

namespace troupe::http {

class connection;

// What the connections of a server share. Outlives them all.
struct server_state {
  http_options options;
  api_backend& backend;
  std::string id_prefix;            // of answer ids: differs from server to server
  std::atomic<size_t> requests{0};  // generations that run
  std::mutex connections_mutex;
  std::set<connection*> connections;  // the open ones, for `stop`
};

class connection : public std::enable_shared_from_this<connection> {
 public:
  virtual ~connection() = default;

  // Begins to read. `overloaded`: answers 503 at once and closes instead.
  virtual void run(bool overloaded) = 0;
  // Any thread. Cancels what runs and cuts the connection, soon.
  virtual void close() = 0;
};

std::shared_ptr<connection> make_connection(boost::asio::ip::tcp::socket socket, server_state& server);

}  // namespace troupe::http
