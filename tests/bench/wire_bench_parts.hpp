// What the wire benchmark is made of: processes to talk to, statistics, and the three ways to cross from
// one process to another that it compares (UCX alone, the wire, ucx_perftest).
#pragma once

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/wire/ucx_wire.hpp"
#include "tests/runtime/wire/raw_ucx.hpp"

namespace troupe::wire_bench {

constexpr uint64_t rendezvous_bytes = 64 * 1024;
constexpr uint64_t row_size = 4096;  // of a dispatch's rows

inline double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline int rounds_for(uint64_t bytes) {
  return bytes >= uint64_t{16} << 20U ? 40 : bytes >= uint64_t{1} << 20U ? 300 : 5000;
}

inline double quantile(std::vector<double> values, double at) {
  if (values.empty()) return 0;
  const auto index = static_cast<size_t>(at * static_cast<double>(values.size() - 1) + 0.5);
  const auto place = values.begin() + static_cast<std::ptrdiff_t>(index);
  std::nth_element(values.begin(), place, values.end());
  return *place;
}
inline double median(const std::vector<double>& values) { return quantile(values, 0.5); }

// Half of the median round trip, in microseconds; the first tenth warms up.
inline double half_round_trip_us(uint64_t bytes, const std::function<void()>& round) {
  std::vector<double> times;
  const int rounds = rounds_for(bytes);
  for (int i = -rounds / 10; i < rounds; ++i) {
    const double began = now_us();
    round();
    if (i >= 0) times.push_back((now_us() - began) / 2);
  }
  return median(times);
}

// This program again, in a mode that serves, and says its address on a line.
class server {
 public:
  explicit server(std::vector<std::string> arguments) {
    int out[2];
    if (pipe(out) != 0) std::abort();
    pid_ = fork();
    if (pid_ == 0) {
      dup2(out[1], 1);
      ::close(out[0]);
      ::close(out[1]);
      std::vector<char*> argv;
      arguments.insert(arguments.begin(), "wire_bench");
      for (auto& argument : arguments) argv.push_back(argument.data());
      argv.push_back(nullptr);
      execv("/proc/self/exe", argv.data());
      _exit(127);
    }
    ::close(out[1]);
    char letter = 0;
    while (read(out[0], &letter, 1) == 1 && letter != '\n') address_ += letter;
    ::close(out[0]);
  }
  ~server() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  server(const server&) = delete;
  server& operator=(const server&) = delete;
  const std::string& address() const { return address_; }

 private:
  pid_t pid_ = -1;
  std::string address_;
};

// Says the address; serves until the parent ends this process.
[[noreturn]] inline void announce_and_wait(const std::string& address) {
  std::printf("%s\n", address.c_str());
  std::fflush(stdout);
  for (;;) pause();
}

// ---- the wire ----------------------------------------------------------------------------------------

inline ucx_wire_options wire_options(uint16_t node, const std::string& transports, bool checksum) {
  ucx_wire_options options;
  options.node = node;
  options.incarnation = 1;
  options.transports = transports;
  options.payload_checksum = checksum;
  options.rendezvous_bytes = rendezvous_bytes;
  // Room for a few bulk messages of 64 MiB.
  options.classes[bulk_class].bytes_in_flight_max = uint64_t{256} << 20U;
  return options;
}

inline std::unique_ptr<ucx_wire> make_wire(const ucx_wire_options& options) {
  auto made = ucx_wire::make(options);
  if (!made) {
    std::fprintf(stderr, "bench_wire: %s\n", made.failure().message.c_str());
    std::exit(1);
  }
  return std::move(*made);
}

// Node 1, connected to a server's node 2.
class client_wire {
 public:
  client_wire(ucx_wire_options options, const std::string& address) {
    options.on_peer = [this](const peer_event& event) { up_ = event.up; };
    wire_ = make_wire(options);
    if (!wire_->connect(2, 1, address)) std::abort();
    while (!up_) sched_yield();
  }
  ucx_wire& operator*() const { return *wire_; }
  ucx_wire* operator->() const { return wire_.get(); }

 private:
  std::atomic<bool> up_{false};
  std::unique_ptr<ucx_wire> wire_;
};

// Rows of BF16 activations, without pairs. Requires: `bytes` is a multiple of `row_size`.
inline micro_batch dispatch_of(buffer_pool& pool, uint64_t bytes) {
  micro_batch message;
  message.header.kind = message_kind::dispatch;
  message.header.dtype = wire_dtype::bf16;
  message.header.hidden = row_size / 2;
  message.header.row_count = static_cast<uint32_t>(bytes / row_size);
  message.payload = pool.acquire(bytes);
  std::memset(message.payload->data, 1, bytes);
  return message;
}

// What a server answers with: as many bytes as it was sent, but its own, as raw UCX and perftest do. To
// send back what has just arrived would measure how two cores' caches share it.
class answers {
 public:
  const micro_batch& of(const micro_batch& asked) {
    const uint64_t bytes = asked.header.payload_bytes;
    auto& made = by_size_[bytes];
    if (!made.payload) made = dispatch_of(pool_, bytes);
    return made;
  }

 private:
  buffer_pool pool_{uint64_t{256} << 20U};
  std::map<uint64_t, micro_batch> by_size_;
};

inline endpoint sender_of(const micro_batch& message) {
  return {message.header.source_node, message.header.source_slot, message.header.source_incarnation};
}

// Each side's progress thread sends the next message from the receiver.
inline double time_wire(ucx_wire& wire, buffer_pool& pool, uint64_t bytes) {
  const auto message = dispatch_of(pool, bytes);
  std::vector<double> times;
  std::atomic<bool> done{false};
  const auto rounds = static_cast<size_t>(rounds_for(bytes));
  times.reserve(rounds * 2);
  double began = now_us();
  wire.attach(0, [&](const micro_batch&) {
    const double now = now_us();
    times.push_back((now - began) / 2);
    began = now;
    if (times.size() < rounds + rounds / 10) {
      (void)wire.send({2, 0, 1}, message);
    } else {
      done = true;
    }
  });
  (void)wire.send({2, 0, 1}, message);
  while (!done) usleep(1000);
  wire.detach(0);
  times.erase(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(rounds / 10));
  return median(times);
}

inline void serve_wire(const std::string& transports) {
  answers own;
  const auto node = make_wire(wire_options(2, transports, false));
  node->attach(0, [&](const micro_batch& message) { (void)node->send(sender_of(message), own.of(message)); });
  announce_and_wait(node->listen_address());
}

// ---- UCX alone ---------------------------------------------------------------------------------------

class raw_side {
 public:
  raw_side(const std::string& transports, uint64_t largest) : ucx(transports), arrived_(largest), to_send_(largest) {
    std::memset(arrived_.data(), 0, largest);
    std::memset(to_send_.data(), 1, largest);
    ucx.on_message(1, &raw_side::on_data, this);
  }
  void send(uint64_t bytes) {
    char header[128] = {};
    const uint32_t flags = bytes >= rendezvous_bytes ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
    ucx.send(1, header, sizeof header, to_send_.data(), bytes, flags);
  }
  void receive() {
    while (!complete_ && descriptor_ == nullptr) ucx.progress();
    if (descriptor_ != nullptr) ucx.receive(descriptor_, arrived_.data(), size_);
    descriptor_ = nullptr;
    complete_ = false;
  }
  size_t size() const { return size_; }

  raw_ucx ucx;

 private:
  static ucs_status_t on_data(void* argument, const void*, size_t, void* data, size_t size,
                              const ucp_am_recv_param_t* parameters) {
    auto& self = *static_cast<raw_side*>(argument);
    self.size_ = std::min(size, self.arrived_.size());
    if ((parameters->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
      self.descriptor_ = data;
      return UCS_INPROGRESS;
    }
    std::memcpy(self.arrived_.data(), data, self.size_);
    self.complete_ = true;
    return UCS_OK;
  }

  std::vector<char> arrived_;
  std::vector<char> to_send_;
  void* descriptor_ = nullptr;
  size_t size_ = 0;
  bool complete_ = false;
};

[[noreturn]] inline void serve_raw(const std::string& transports, uint64_t largest) {
  raw_side side(transports, largest);
  std::printf("%s\n", side.ucx.listen().c_str());
  std::fflush(stdout);
  for (;;) {
    side.receive();
    side.send(side.size());
  }
}

inline double time_raw(const std::string& transports, uint64_t bytes) {
  const server peer({"--serve-raw", transports, std::to_string(bytes)});
  raw_side side(transports, bytes);
  side.ucx.connect(peer.address());
  return half_round_trip_us(bytes, [&] {
    side.send(bytes);
    side.receive();
  });
}

// ---- ucx_perftest ------------------------------------------------------------------------------------

// Its median half round trip in microseconds under these settings ("UCX_RNDV_THRESH=64k"), or 0 where it
// is not installed or fails. The client knocks until the server listens.
inline double time_perftest(const std::string& transports, uint64_t bytes, const std::string& settings) {
  static int runs = 0;
  const int port = 20000 + static_cast<int>((getpid() * 7 + ++runs) % 20000);
  char command[1024];
  std::snprintf(command, sizeof command,
                "command -v ucx_perftest >/dev/null || exit 1; export UCX_TLS=%s UCX_WARN_UNUSED_ENV_VARS=n %s; "
                "timeout 60 ucx_perftest -p %d >/dev/null 2>&1 & server=$!; "
                "for i in $(seq 100); do sleep 0.05; "
                "timeout 60 ucx_perftest 127.0.0.1 -p %d -t ucp_am_lat -s %zu -n %d -w %d 2>/dev/null && break; done; "
                "kill $server 2>/dev/null; wait",
                transports.c_str(), settings.c_str(), port, port, static_cast<size_t>(bytes), rounds_for(bytes),
                rounds_for(bytes) / 10);
  FILE* const out = popen(command, "r");
  if (out == nullptr) return 0;
  double typical = 0;
  char line[512];
  while (std::fgets(line, sizeof line, out) != nullptr) {
    double iterations = 0;
    double percentile = 0;
    if (std::sscanf(line, "Final: %lf %lf", &iterations, &percentile) == 2) typical = percentile;
  }
  pclose(out);
  return typical;
}

// ---- a thread's wake-up ------------------------------------------------------------------------------

// Half of the median round trip of two threads over condition variables: on two cores, as between the
// wire's thread, which goes on, and an actor's; or wherever the system puts them, which may be one.
inline double time_wake_up(bool two_cores) {
  const auto bind = [two_cores](int which) {
    cpu_set_t allowed;
    if (!two_cores || sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) return;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &allowed) || which-- != 0) continue;
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      (void)sched_setaffinity(0, sizeof one, &one);
      return;
    }
  };
  std::mutex mutex;
  std::condition_variable changed;
  bool theirs = false;
  bool ended = false;
  const auto answer = [&] {
    bind(0);
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return theirs || ended; });
      if (ended) return;
      theirs = false;
      changed.notify_all();
    }
  };
  double figure = 0;
  const auto ask = [&] {
    bind(1);
    figure = half_round_trip_us(row_size, [&] {
      std::unique_lock lock(mutex);
      theirs = true;
      changed.notify_all();
      changed.wait(lock, [&] { return !theirs; });
    });
    const std::lock_guard lock(mutex);
    ended = true;
    changed.notify_all();
  };
  std::thread one(answer);
  std::thread two(ask);
  two.join();
  one.join();
  return figure;
}

}  // namespace troupe::wire_bench
