#include "apps/http/server.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <pthread.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>
#include <utility>
#include <vector>

#include "apps/http/connection.hpp"

namespace troupe::http {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// Connections beyond the limit that are being told so; beyond these, they are closed without a word.
constexpr size_t refusals_max = 64;
// How long accepting rests when the process is out of file descriptors.
constexpr std::chrono::milliseconds accept_pause{100};

// Differs from server to server and from start to start: the microsecond of the start, and the port
// for servers that started together.
std::string id_prefix_of(uint16_t port) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::array<char, 32> digits{};
  std::snprintf(digits.data(), digits.size(), "%llx%04x",
                static_cast<unsigned long long>(std::chrono::duration_cast<std::chrono::microseconds>(now).count()),
                unsigned{port});
  return digits.data();
}

result<void> validate(const http_options& options) {
  const auto refuse = [](const std::string& what) { return error{errc::invalid_argument, "http: " + what}; };
  if (options.threads < 1 || options.threads > 64) return refuse("threads must be from 1 to 64.");
  if (options.connections_max < 1 || options.requests_max < 1)
    return refuse("connections_max and requests_max must be at least 1.");
  if (options.header_bytes_max < 256 || options.header_bytes_max > 1024 * 1024)
    return refuse("header_bytes_max must be from 256 bytes to 1 MiB.");
  if (options.body_bytes_max < 1 || options.output_bytes_max < 1)
    return refuse("body_bytes_max and output_bytes_max must be at least 1 byte.");
  if (options.idle_timeout.count() < 1 || options.request_timeout.count() < 1 || options.write_timeout.count() < 1)
    return refuse("timeouts must be at least 1 ms.");
  for (const char letter : options.api_key) {
    if (letter <= ' ' || letter > '~') return refuse("the API key may hold visible ASCII characters only, no spaces.");
  }
  return {};
}

}  // namespace

class http_server::implementation {
 public:
  implementation(http_options options, api_backend& backend)
      : state_{.options = std::move(options),
               .backend = backend,
               .id_prefix = {},
               .requests = {},
               .connections_mutex = {},
               .connections = {}},
        io_(static_cast<int>(state_.options.threads)),
        acceptor_(asio::make_strand(io_)),
        pause_(acceptor_.get_executor()) {}

  result<void> listen() {
    error_code problem;
    const auto address = asio::ip::make_address(state_.options.address, problem);
    if (problem) {
      return error{errc::invalid_argument,
                   "http: '" + state_.options.address + "' is not a numeric IP address such as 127.0.0.1 or ::1."};
    }
    const tcp::endpoint endpoint(address, state_.options.port);
    const auto failed = [&](const char* step) {
      return error{errc::unavailable, "http: cannot " + std::string(step) + " " + state_.options.address + " port " +
                                          std::to_string(state_.options.port) + ": " + problem.message() + "."};
    };
    if (acceptor_.open(endpoint.protocol(), problem)) return failed("open a socket for");
    acceptor_.set_option(asio::socket_base::reuse_address(true), problem);
    if (acceptor_.bind(endpoint, problem)) return failed("bind to");
    if (acceptor_.listen(asio::socket_base::max_listen_connections, problem)) return failed("listen on");
    port_ = acceptor_.local_endpoint(problem).port();
    state_.id_prefix = id_prefix_of(port_);
    return {};
  }

  void run() {
    asio::post(acceptor_.get_executor(), [this] { accept(); });
    for (size_t i = 0; i < state_.options.threads; ++i) {
      threads_.emplace_back([this] {
        pthread_setname_np(pthread_self(), "troupe-http");
        io_.run();
      });
    }
  }

  uint16_t port() const { return port_; }

  // The threads end by themselves once no operation is pending: no handler is dropped half-way.
  void stop() {
    if (stopping_.exchange(true)) return;
    asio::post(acceptor_.get_executor(), [this] {
      error_code ignored;
      acceptor_.close(ignored);
      pause_.cancel();
      close_connections();
    });
    for (auto& thread : threads_) {
      thread.join();
    }
  }

 private:
  void accept() {
    acceptor_.async_accept(asio::make_strand(io_), [this](error_code problem, tcp::socket socket) {
      if (!acceptor_.is_open()) return;
      if (problem) {
        pause_.expires_after(accept_pause);
        pause_.async_wait([this](error_code cancelled) {
          if (!cancelled && acceptor_.is_open()) {
            accept();
          }
        });
        return;
      }
      admit(std::move(socket));
      accept();
    });
  }

  void admit(tcp::socket socket) {
    const size_t open = connection_count();
    if (open < state_.options.connections_max + refusals_max) {
      make_connection(std::move(socket), state_)->run(open >= state_.options.connections_max);
    }
  }

  size_t connection_count() {
    const std::lock_guard lock(state_.connections_mutex);
    return state_.connections.size();
  }

  void close_connections() {
    std::vector<std::shared_ptr<connection>> open;  // a last reference must not go under the lock
    {
      const std::lock_guard lock(state_.connections_mutex);
      for (auto* each : state_.connections) {
        if (auto alive = each->weak_from_this().lock()) {
          open.push_back(std::move(alive));
        }
      }
    }
    for (const auto& each : open) {
      each->close();
    }
  }

  server_state state_;  // before the io_context, whose handlers hold connections that refer to it
  asio::io_context io_;
  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  std::vector<std::thread> threads_;
  std::atomic<bool> stopping_{false};
  uint16_t port_ = 0;
};

result<std::unique_ptr<http_server>> http_server::start(http_options options, api_backend& backend) {
  if (auto valid = validate(options); !valid) return valid.failure();
  auto state = std::make_unique<implementation>(std::move(options), backend);
  if (auto listening = state->listen(); !listening) return listening.failure();
  state->run();
  return std::unique_ptr<http_server>(new http_server(std::move(state)));
}

http_server::http_server(std::unique_ptr<implementation> state) : state_(std::move(state)) {}
http_server::~http_server() { stop(); }
uint16_t http_server::port() const { return state_->port(); }
void http_server::stop() { state_->stop(); }

}  // namespace troupe::http
