// A real `troupe serve` with its node processes, for tests; and a small blocking HTTP client.
#pragma once

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <nlohmann/json.hpp>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/small_model.hpp"

namespace troupe::testing {

struct http_answer {
  int status = 0;
  std::string body;
  nlohmann::json json() const { return nlohmann::json::parse(body, nullptr, false); }
};

// One request on a connection of its own; empty when the server cannot be reached.
inline std::optional<http_answer> http_call(uint16_t port, const std::string& method, const std::string& path,
                                            const std::string& body = "") {
  const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval patience{120, 0};
  setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  std::string received;
  bool reached = connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  if (reached) {
    const std::string request = method + " " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" +
                                "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
                                "\r\n\r\n" + body;
    reached = send(connection, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size());
    char part[4096];
    ssize_t got = 0;
    while (reached && (got = recv(connection, part, sizeof part, 0)) > 0)
      received.append(part, static_cast<size_t>(got));
  }
  close(connection);
  const size_t head = received.find("\r\n\r\n");
  if (!reached || head == std::string::npos || received.size() < 12) return std::nullopt;
  return http_answer{std::atoi(received.c_str() + 9), received.substr(head + 4)};
}

class served_cluster {
 public:
  // Starts `troupe serve` on a copy of the bundled model's configuration. `lines` are added to it. `trace`: a file for
  // its timeline, or none.
  explicit served_cluster(uint32_t nodes, const std::string& lines = "", const std::string& trace = "") {
    std::ofstream(directory_.path() / "cluster.yaml")
        << "model: " << TROUPE_SOURCE_DIR << "/examples/tiny-moe\nnodes: " << nodes << "\nverdict_ms: 800\n"
        << lines;
    const auto config = (directory_.path() / "cluster.yaml").string();
    const auto port_file = (directory_.path() / "port").string();
    process_ = fork();
    if (process_ == 0) {
      const int log = open((directory_.path() / "log").c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
      dup2(log, 1);
      dup2(log, 2);
      execl(TROUPE_BINARY_DIR "/bin/troupe", "troupe", "serve", config.c_str(), "--port", "0", "--port-file",
            port_file.c_str(), trace.empty() ? nullptr : "--trace", trace.c_str(), nullptr);
      _exit(127);
    }
    wait_until([&] {
      std::ifstream file(port_file);
      int read = 0;
      if (file >> read) port_ = static_cast<uint16_t>(read);
      return port_ != 0 || !running();
    });
  }
  ~served_cluster() {
    stop(SIGTERM);
    // What a sanitizer found in any of the processes fails the test.
    const std::string said = log();
    if (said.find("Sanitizer") != std::string::npos || said.find("runtime error") != std::string::npos)
      FAIL_CHECK(said);
  }

  bool running() const { return process_ > 0 && kill(process_, 0) == 0 && waitpid(process_, nullptr, WNOHANG) == 0; }
  uint16_t port() const { return port_; }
  pid_t process() const { return process_; }
  std::string log() const {
    std::ifstream file(directory_.path() / "log");
    return {std::istreambuf_iterator<char>(file), {}};
  }

  // Where other processes join, as the head prints it.
  std::string join_address() const {
    const std::string before = "troupe node --join ";
    const auto said = log();
    const size_t at = said.find(before);
    if (at == std::string::npos) return "";
    return said.substr(at + before.size(), said.find('\n', at) - at - before.size());
  }

  // Sends a signal to the head and waits for its end.
  void stop(int signal) {
    if (process_ <= 0) return;
    kill(process_, signal);
    waitpid(process_, nullptr, 0);
    process_ = 0;
  }

  nlohmann::json cluster() const {
    const auto answer = http_call(port_, "GET", "/cluster");
    return answer ? answer->json() : nlohmann::json();
  }

  // The process of a node, once it is live; 0 when that takes more than a minute.
  pid_t node_process(int node) const {
    pid_t found = 0;
    wait_until([&] {
      const auto document = cluster();
      if (!document.contains("nodes")) return false;
      const auto& entry = document["nodes"][static_cast<size_t>(node)];
      if (entry["state"] == "live") found = entry["process"].get<pid_t>();
      return found != 0;
    });
    return found;
  }

  bool wait_for_live_nodes(size_t wanted) const {
    return wait_until([&] {
      const auto document = cluster();
      size_t live = 0;
      if (document.contains("nodes"))
        for (const auto& node : document["nodes"]) live += node["state"] == "live" ? 1 : 0;
      return live >= wanted;
    });
  }

  static bool wait_until(const std::function<bool()>& condition) {
    for (int i = 0; i < 1200; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  }

 private:
  temporary_directory directory_;
  pid_t process_ = 0;
  uint16_t port_ = 0;
};

}  // namespace troupe::testing
