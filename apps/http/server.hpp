// The HTTP front of a node: OpenAI's API, health, metrics and the cluster document.
//
// An adapter: it turns HTTP into `api_backend` calls and their events into responses, and knows nothing
// of actors. Owned by the `troupe serve` command; it runs threads of its own. HTTP/1.1 with keep-alive,
// in clear text: put a TLS proxy in front of anything that leaves the machine.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "actors/api.hpp"
#include "runtime/error.hpp"

namespace troupe::http {

struct http_options {
  std::string address = "127.0.0.1";             // numeric; "0.0.0.0" or "::" opens the server to the network
  uint16_t port = 0;                             // 0: any free one
  std::string api_key = {};                      // empty: no key is asked for
  std::string system_fingerprint = "fp_troupe";  // names weights and arithmetic: equal ones give equal tokens
  size_t threads = 1;
  size_t connections_max = 1024;  // beyond: 503 and the connection closes
  size_t requests_max = 256;      // generations at a time over all connections; beyond: 429
  size_t header_bytes_max = 16 * 1024;
  size_t body_bytes_max = 1024 * 1024;
  // What may wait for one client. A reader so slow that more piles up has its request cancelled and its
  // connection cut, so that it cannot hold KV blocks or memory. Also the longest answer without `stream`.
  size_t output_bytes_max = 4 * 1024 * 1024;
  std::chrono::milliseconds idle_timeout{60'000};     // between requests of one connection
  std::chrono::milliseconds request_timeout{10'000};  // from a request's first byte to its last
  std::chrono::milliseconds write_timeout{30'000};    // for the client to take 64 KiB
};

class http_server {
 public:
  // Listens when it returns. `backend` must outlive the server; its sinks may be called at any time.
  // Fails: invalid_argument for options that make no sense; unavailable when the address is taken.
  static result<std::unique_ptr<http_server>> start(http_options options, api_backend& backend);

  http_server(const http_server&) = delete;
  http_server& operator=(const http_server&) = delete;
  ~http_server();

  // The port it listens on.
  uint16_t port() const;

  // Stops listening, cancels what runs, cuts the connections and joins the threads. Once it returns,
  // the backend hears nothing more. Idempotent; not to be called from a sink.
  void stop();

 private:
  class implementation;
  explicit http_server(std::unique_ptr<implementation> state);

  std::unique_ptr<implementation> state_;
};

}  // namespace troupe::http
