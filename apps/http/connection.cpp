#include "apps/http/connection.hpp"

#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>

#include <deque>
#include <optional>
#include <utility>

#include "apps/http/event_inbox.hpp"
#include "apps/http/exchange.hpp"
#include "apps/http/routes.hpp"

namespace troupe::http {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using boost::system::error_code;

constexpr size_t read_bytes = 4096;
constexpr size_t write_bytes = 64 * 1024;      // sent at a time; `write_timeout` is for this much
constexpr size_t pipelined_bytes = 64 * 1024;  // kept of requests that come before their turn
constexpr std::chrono::seconds linger_timeout{2};

// The response to a request that Beast could not read; nothing when the client is gone or too slow.
std::optional<reply> answer_to(error_code problem, const http_options& options) {
  using beast::http::error;
  if (problem == error::header_limit) {
    return to_reply(
        {.status = 431,
         .message = "The request's header is longer than " + std::to_string(options.header_bytes_max) + " bytes.",
         .code = "header_too_large"});
  }
  if (problem == error::body_limit) {
    return to_reply(
        {.status = 413,
         .message = "The request's body is longer than " + std::to_string(options.body_bytes_max) + " bytes.",
         .code = "body_too_large"});
  }
  const bool client_gone = problem == error::end_of_stream || problem == error::partial_message;
  if (client_gone || problem.category() != make_error_code(error::bad_method).category()) return std::nullopt;
  return to_reply(
      {.status = 400, .message = "This is not an HTTP/1.1 request: " + problem.message() + ".", .code = "bad_http"});
}

class http_connection final : public connection {
 public:
  http_connection(asio::ip::tcp::socket socket, server_state& server) : server_(server), stream_(std::move(socket)) {
    const std::lock_guard lock(server_.connections_mutex);
    server_.connections.insert(this);
  }

  ~http_connection() override {
    give_up();
    const std::lock_guard lock(server_.connections_mutex);
    server_.connections.erase(this);
  }

  void run(bool overloaded) override {
    asio::dispatch(stream_.get_executor(), [this, self = shared_from_this(), overloaded] {
      error_code ignored;
      stream_.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
      stream_.socket().set_option(asio::socket_base::keep_alive(true), ignored);
      if (!overloaded) return await_request();
      keep_alive_ = false;
      respond(to_reply(
          to_api_error({errc::unavailable, "This server has as many connections as it may; try again later."})));
    });
  }

  void close() override {
    asio::post(stream_.get_executor(), [this, self = shared_from_this()] { cut(); });
  }

 private:
  using parser = beast::http::request_parser<beast::http::string_body>;

  // A handler that keeps the connection alive and does nothing once it has been cut.
  template <class Member>
  auto bound(Member member) {
    return [this, self = shared_from_this(), member](error_code problem, size_t bytes = 0) {
      if (!closed_) {
        (this->*member)(problem, bytes);
      }
    };
  }

  // --- reading a request

  void await_request() {
    if (buffer_.size() > 0) return read_header();
    stream_.expires_after(server_.options.idle_timeout);
    stream_.async_read_some(buffer_.prepare(read_bytes), bound(&http_connection::on_first_bytes));
  }

  void on_first_bytes(error_code problem, size_t bytes) {
    if (problem) return cut();
    buffer_.commit(bytes);
    read_header();
  }

  void read_header() {
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(server_.options.header_bytes_max));
    parser_->body_limit(server_.options.body_bytes_max);
    stream_.expires_after(server_.options.request_timeout);  // for the body too: set once, never extended
    beast::http::async_read_header(stream_, buffer_, *parser_, bound(&http_connection::on_header));
  }

  void on_header(error_code problem, size_t) {
    if (problem || !beast::iequals(parser_->get()[beast::http::field::expect], "100-continue"))
      return on_continued(problem, 0);
    // curl waits a second for this before it sends a long body.
    static constexpr std::string_view go_on = "HTTP/1.1 100 Continue\r\n\r\n";
    asio::async_write(stream_, asio::buffer(go_on), bound(&http_connection::on_continued));
  }

  void on_continued(error_code problem, size_t) {
    if (problem) return on_request(problem, 0);
    beast::http::async_read(stream_, buffer_, *parser_, bound(&http_connection::on_request));
  }

  void on_request(error_code problem, size_t) {
    busy_ = true;
    if (problem) {
      keep_alive_ = false;  // where the next request would begin is unknown
      head_only_ = false;
      if (auto answer = answer_to(problem, server_.options)) {
        respond(*answer);
      } else {
        cut();
      }
      return;
    }
    const auto request = parser_->release();
    keep_alive_ = request.keep_alive();
    chunked_ = request.version() >= 11;
    head_only_ = request.method() == beast::http::verb::head;
    const auto field = [&](beast::http::field name) { return std::string_view(request[name]); };
    auto action = route({.method = request.method_string(),
                         .target = request.target(),
                         .content_type = field(beast::http::field::content_type),
                         .content_encoding = field(beast::http::field::content_encoding),
                         .authorization = field(beast::http::field::authorization),
                         .body = request.body()},
                        server_.options.api_key, server_.backend);
    if (const auto* answer = std::get_if<reply>(&action)) {
      respond(*answer);
    } else {
      generate(std::get<api_request>(std::move(action)));
    }
  }

  // --- a generation

  void generate(api_request request) {
    if (server_.requests.fetch_add(1) >= server_.options.requests_max) {
      server_.requests.fetch_sub(1);
      respond(to_reply(to_api_error(
          {errc::exhausted, std::to_string(server_.options.requests_max) +
                                " requests are running, as many as this server takes; try again shortly."})));
      return;
    }
    exchange_.emplace(request,
                      response_head{.created_s = unix_time_s(),
                                    .model = server_.backend.model_name(),
                                    .system_fingerprint = server_.options.system_fingerprint},
                      server_.id_prefix, server_.options.output_bytes_max);
    chunked_ = chunked_ && request.stream;
    keep_alive_ = keep_alive_ && (chunked_ || !request.stream);  // a bare stream ends with its connection
    auto wake = [executor = stream_.get_executor(), weak = weak_from_this()] {
      asio::post(executor, [weak] {
        if (const auto self = weak.lock()) {
          static_cast<http_connection&>(*self).on_events();
        }
      });
    };
    inbox_ = std::make_shared<event_inbox>(std::move(wake), server_.options.output_bytes_max);
    held_ = shared_from_this();
    watch();
    request_ = server_.backend.submit(std::move(request.generation),
                                      [inbox = inbox_](generation_event event) { inbox->push(std::move(event)); });
  }

  void on_events() {
    if (!inbox_) {
      return;  // woken for a request that has ended
    }
    bool overflowed = false;
    exchange_output output;
    for (auto& event : inbox_->take(overflowed)) {
      exchange_->on_event(std::move(event), output);
    }
    if (overflowed) return cut();
    if (output.cancel) {
      give_up();
    } else if (output.done) {
      end_generation();
    }
    if (output.whole) return respond(*output.whole);
    std::string bytes = output.begin_stream ? stream_head(chunked_, keep_alive_) : std::string();
    if (!output.events.empty()) {
      bytes += chunked_ ? chunk(output.events) : output.events;
    }
    if (output.done && chunked_) {
      bytes += last_chunk;
    }
    responded_ = output.done;
    send(std::move(bytes));
    if (output_size_ > server_.options.output_bytes_max) {
      cut();  // a reader this slow would fill our memory
    }
  }

  void end_generation() {
    std::exchange(inbox_, nullptr)->close();
    server_.requests.fetch_sub(1);
    held_.reset();  // the caller's handler holds the connection as well: this is not the last reference
  }

  // Ends the generation, if one runs, before the backend does.
  void give_up() {
    if (inbox_) {
      end_generation();
      server_.backend.cancel(request_);
    }
  }

  // While a generation runs, reads on: that is how TCP tells that the client has gone. Bytes that come
  // are the next request's. A client that half-closes counts as gone.
  void watch() {
    if (buffer_.size() >= pipelined_bytes) return;
    watching_ = true;
    stream_.expires_never();
    stream_.async_read_some(buffer_.prepare(read_bytes), bound(&http_connection::on_watched));
  }

  void on_watched(error_code problem, size_t bytes) {
    watching_ = false;
    buffer_.commit(bytes);
    if (busy_) {
      problem ? cut() : watch();
    } else if (lingering_) {
      begin_discarding();
    } else if (problem && problem != asio::error::operation_aborted) {
      cut();
    } else {
      await_request();
    }
  }

  // --- writing

  void respond(const reply& answer) {
    responded_ = true;
    send(serialize(answer, keep_alive_, head_only_));
  }

  void send(std::string bytes) {
    output_size_ += bytes.size();
    if (!bytes.empty()) {
      output_.push_back(std::move(bytes));
    }
    if (!writing_) {
      write_next();
    }
  }

  void write_next() {
    if (output_.empty()) {
      if (responded_) {
        on_responded();
      }
      return;
    }
    // Small pieces go out together, one system call for all.
    in_flight_.clear();
    while (!output_.empty() && in_flight_.size() < write_bytes) {
      in_flight_ += output_.front();
      output_.pop_front();
    }
    write_from(0);
  }

  void write_from(size_t offset) {
    writing_ = true;
    const auto piece = asio::buffer(asio::buffer(in_flight_) + offset, write_bytes);
    stream_.expires_after(server_.options.write_timeout);
    asio::async_write(stream_, piece, [this, self = shared_from_this(), offset](error_code problem, size_t bytes) {
      if (!closed_) {
        on_written(problem, offset + bytes);
      }
    });
  }

  void on_written(error_code problem, size_t written) {
    if (problem) return cut();
    if (written < in_flight_.size()) return write_from(written);
    output_size_ -= in_flight_.size();
    writing_ = false;
    write_next();
  }

  void on_responded() {
    responded_ = false;
    busy_ = false;
    if (!keep_alive_) {
      linger();
    } else if (watching_) {
      stream_.cancel();  // `on_watched` goes on
    } else {
      await_request();
    }
  }

  // Closing while bytes from the client are unread makes TCP reset the connection, which can take the
  // response with it; so says that no more comes, and reads what does for a while.
  void linger() {
    lingering_ = true;
    error_code ignored;
    stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
    if (watching_) {
      stream_.cancel();  // `on_watched` goes on
    } else {
      begin_discarding();
    }
  }

  void begin_discarding() {
    stream_.expires_after(linger_timeout);  // for all of it
    discard();
  }

  void discard() {
    buffer_.clear();
    stream_.async_read_some(buffer_.prepare(write_bytes), bound(&http_connection::on_discarded));
  }

  void on_discarded(error_code problem, size_t) { problem ? cut() : discard(); }

  void cut() {
    const auto self = shared_from_this();
    closed_ = true;
    give_up();
    error_code ignored;
    stream_.socket().close(ignored);
  }

  static uint64_t unix_time_s() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(now).count());
  }

  server_state& server_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;  // read and not yet understood
  std::optional<parser> parser_;

  bool keep_alive_ = true;  // of the request that is being answered, as are the next two
  bool chunked_ = false;
  bool head_only_ = false;
  bool busy_ = false;      // from a request's last byte to its response's last
  bool watching_ = false;  // a read is pending while busy
  bool lingering_ = false;
  bool closed_ = false;

  std::optional<exchange> exchange_;
  std::shared_ptr<event_inbox> inbox_;  // null: no generation runs
  std::shared_ptr<connection> held_;    // itself, while a generation runs
  uint64_t request_ = 0;

  std::deque<std::string> output_;  // responses' bytes that wait
  std::string in_flight_;           // and those that are being written
  size_t output_size_ = 0;          // of both
  bool writing_ = false;
  bool responded_ = false;  // the response's last byte is in the queue
};

}  // namespace

std::shared_ptr<connection> make_connection(asio::ip::tcp::socket socket, server_state& server) {
  return std::make_shared<http_connection>(std::move(socket), server);
}

}  // namespace troupe::http
