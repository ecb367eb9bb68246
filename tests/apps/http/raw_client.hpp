// A blocking HTTP client on a bare socket, so that a test controls every byte.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace troupe::http {

struct raw_response {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
  bool complete = false;                       // false: the connection ended early
};

class raw_client {
 public:
  // `receive_bytes`: a small one makes a slow reader. Reads give up after 20 seconds.
  explicit raw_client(uint16_t port, int receive_bytes = 0) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_bytes > 0) {
      ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    }
    const timeval limit{.tv_sec = 20, .tv_usec = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  raw_client(const raw_client&) = delete;
  raw_client& operator=(const raw_client&) = delete;
  ~raw_client() { close(); }

  bool connected() const { return connected_; }

  void close() {
    if (socket_ >= 0) {
      ::close(std::exchange(socket_, -1));
    }
  }

  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const auto count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) {
        return;
      }
      bytes.remove_prefix(static_cast<size_t>(count));
    }
  }

  // Reads until at least `text` has come; false when the connection ends or stalls first.
  bool read_until(std::string_view text) {
    while (received_.find(text) == std::string::npos) {
      if (!read_more()) {
        return false;
      }
    }
    return true;
  }

  // Whether the server closes the connection, whatever it sends before.
  bool read_to_end() {
    while (read_more()) {}
    return at_end_;
  }

  raw_response read_response(bool head_only = false) {
    raw_response response;
    if (!read_until("\r\n\r\n")) {
      return response;
    }
    parse_head(response);
    if (head_only) {
      response.complete = true;
    } else if (response.headers.contains("content-length")) {
      const auto size = static_cast<size_t>(std::atoll(response.headers["content-length"].c_str()));
      response.complete = read_size(size);
      response.body = take(size);
    } else if (response.headers.contains("transfer-encoding")) {
      response.complete = read_chunks(response.body);
    } else {
      response.complete = read_to_end();
      response.body = take(received_.size());
    }
    return response;
  }

  raw_response ask(std::string_view request) {
    send(request);
    return read_response();
  }

 private:
  bool read_more() {
    char bytes[16384];
    const auto count = ::recv(socket_, bytes, sizeof bytes, 0);
    at_end_ = count == 0 || (count < 0 && errno == ECONNRESET);
    if (count <= 0) {
      return false;
    }
    received_.append(bytes, static_cast<size_t>(count));
    return true;
  }

  bool read_size(size_t size) {
    while (received_.size() < size) {
      if (!read_more()) {
        return false;
      }
    }
    return true;
  }

  std::string take(size_t size) {
    auto front = received_.substr(0, size);
    received_.erase(0, size);
    return front;
  }

  void parse_head(raw_response& response) {
    auto head = take(received_.find("\r\n\r\n") + 4);
    response.status = std::atoi(head.c_str() + std::string_view("HTTP/1.1 ").size());
    for (size_t at = head.find("\r\n") + 2; head.compare(at, 2, "\r\n") != 0; at = head.find("\r\n", at) + 2) {
      const auto colon = head.find(": ", at);
      auto name = head.substr(at, colon - at);
      for (auto& letter : name) {
        letter = static_cast<char>(std::tolower(letter));
      }
      response.headers[name] = head.substr(colon + 2, head.find("\r\n", at) - colon - 2);
    }
  }

  bool read_chunks(std::string& body) {
    while (read_until("\r\n")) {
      const auto size = std::strtoull(received_.c_str(), nullptr, 16);
      take(received_.find("\r\n") + 2);
      if (!read_size(size + 2)) {
        return false;
      }
      body += take(size);
      take(2);
      if (size == 0) {
        return true;
      }
    }
    return false;
  }

  int socket_;
  bool connected_ = false;
  bool at_end_ = false;
  std::string received_;  // and not yet taken
};

// A request's bytes.
inline std::string post(std::string_view path, std::string_view body, std::string_view headers = "") {
  return "POST " + std::string(path) +
         " HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n" + std::string(headers) + "\r\n" + std::string(body);
}

inline std::string get(std::string_view path, std::string_view headers = "") {
  return "GET " + std::string(path) + " HTTP/1.1\r\nHost: test\r\n" + std::string(headers) + "\r\n";
}

}  // namespace troupe::http
