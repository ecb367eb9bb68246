// What a micro-batch between two processes costs: the UCX wire against UCX itself.
//
//   wire_bench [--json]
//
// Half round trips (medians) of a ping-pong between this process and one it starts. `wire` replies from
// its receiver, on the progress thread; `wire, actor` replies from another thread, as an actor does;
// `raw` is UCX alone with the same 128-byte header, threshold, failure mode and yielding wait, copying
// eager data out as the wire does; `perftest` is ucx_perftest where it is installed (package ucx-utils).
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/wire/ucx_wire.hpp"
#include "tests/runtime/wire/raw_ucx.hpp"

namespace troupe {
namespace {

constexpr uint64_t rendezvous_bytes = 64 * 1024;
constexpr uint64_t largest = uint64_t{16} << 20U;

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int rounds_for(uint64_t bytes) { return bytes >= largest ? 30 : bytes >= 1 << 20 ? 300 : 10'000; }

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Half of the median round trip, in microseconds; the first tenth warms up.
double half_round_trip_us(uint64_t bytes, const std::function<void()>& round) {
  std::vector<double> times;
  const int rounds = rounds_for(bytes);
  for (int i = -rounds / 10; i < rounds; ++i) {
    const double began = now_us();
    round();
    if (i >= 0) times.push_back((now_us() - began) / 2);
  }
  return median(std::move(times));
}

// A child that runs `serve` with a descriptor to write its address to.
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

// ---- the wire ----------------------------------------------------------------------------------------

ucx_wire_options wire_options(uint16_t node, const std::string& transports, bool checksum) {
  ucx_wire_options options;
  options.node = node;
  options.incarnation = 1;
  options.transports = transports;
  options.payload_checksum = checksum;
  options.rendezvous_bytes = rendezvous_bytes;
  return options;
}

std::unique_ptr<ucx_wire> make_wire(const ucx_wire_options& options) {
  auto made = ucx_wire::make(options);
  if (!made) {
    std::fprintf(stderr, "%s\n", made.failure().message.c_str());
    std::exit(1);
  }
  return std::move(*made);
}

void serve_wire(const std::string& transports, bool checksum) {
  const auto node = make_wire(wire_options(2, transports, checksum));
  node->attach(0, [&](micro_batch message) {
    const endpoint back{message.header.source_node, 0, message.header.source_incarnation};
    (void)node->send(back, std::move(message));
  });
  std::printf("%s\n", node->listen_address().c_str());
  std::fflush(stdout);
  for (;;) pause();
}

// `from_actor`: each round is sent by a thread that waits for the answer; else the receiver sends the
// next round itself.
std::vector<double> time_wire(const std::string& transports, const std::vector<uint64_t>& sizes, bool checksum,
                              bool from_actor) {
  const server peer({"--serve-wire", transports, checksum ? "1" : "0"});
  buffer_pool pool(uint64_t{256} << 20U);
  std::atomic<bool> up{false};
  auto options = wire_options(1, transports, checksum);
  options.on_peer = [&](const peer_event& event) { up = event.up; };
  const auto node = make_wire(options);
  if (!node->connect(2, 1, peer.address())) std::abort();
  while (!up) sched_yield();

  std::vector<double> out;
  for (const uint64_t bytes : sizes) {
    micro_batch message;
    message.header.kind = message_kind::bulk;
    message.payload = pool.acquire(bytes);
    std::memset(message.payload->data, 1, bytes);
    if (from_actor) {
      std::atomic<int> answers{0};
      node->attach(0, [&](micro_batch) { ++answers; });
      out.push_back(half_round_trip_us(bytes, [&] {
        const int before = answers;
        (void)node->send({2, 0, 1}, message);
        while (answers == before) sched_yield();
      }));
    } else {
      std::vector<double> times;
      std::atomic<bool> done{false};
      const int rounds = rounds_for(bytes);
      double began = now_us();
      node->attach(0, [&](micro_batch) {
        const double now = now_us();
        times.push_back((now - began) / 2);
        began = now;
        if (static_cast<int>(times.size()) < rounds + rounds / 10) {
          (void)node->send({2, 0, 1}, message);
        } else {
          done = true;
        }
      });
      (void)node->send({2, 0, 1}, message);
      while (!done) usleep(1000);
      times.erase(times.begin(), times.begin() + rounds / 10);
      out.push_back(median(std::move(times)));
    }
    node->detach(0);
  }
  return out;
}

// ---- UCX alone ---------------------------------------------------------------------------------------

struct raw_side {
  explicit raw_side(const std::string& transports) : ucx(transports), arrived(largest), to_send(largest) {
    std::memset(arrived.data(), 0, largest);
    std::memset(to_send.data(), 1, largest);
    ucx.on_message(1, &raw_side::on_data, this);
  }
  static ucs_status_t on_data(void* argument, const void*, size_t, void* data, size_t size,
                              const ucp_am_recv_param_t* parameters) {
    auto& self = *static_cast<raw_side*>(argument);
    self.size = size;
    if ((parameters->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
      self.descriptor = data;
      return UCS_INPROGRESS;
    }
    std::memcpy(self.arrived.data(), data, size);
    self.complete = true;
    return UCS_OK;
  }
  void send(uint64_t bytes) {
    char header[128] = {};
    const uint32_t flags = bytes >= rendezvous_bytes ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
    ucx.send(1, header, sizeof header, to_send.data(), bytes, flags);
  }
  void receive() {
    while (!complete && descriptor == nullptr) ucx.progress();
    if (descriptor != nullptr) ucx.receive(descriptor, arrived.data(), size);
    descriptor = nullptr;
    complete = false;
  }

  raw_ucx ucx;
  std::vector<char> arrived;
  std::vector<char> to_send;
  void* descriptor = nullptr;
  size_t size = 0;
  bool complete = false;
};

void serve_raw(const std::string& transports) {
  raw_side side(transports);
  std::printf("%s\n", side.ucx.listen().c_str());
  std::fflush(stdout);
  for (;;) {
    side.receive();
    side.send(side.size);
  }
}

std::vector<double> time_raw(const std::string& transports, const std::vector<uint64_t>& sizes) {
  const server peer({"--serve-raw", transports});
  raw_side side(transports);
  side.ucx.connect(peer.address());
  std::vector<double> out;
  for (const uint64_t bytes : sizes)
    out.push_back(half_round_trip_us(bytes, [&] {
      side.send(bytes);
      side.receive();
    }));
  return out;
}

// ---- ucx_perftest ------------------------------------------------------------------------------------

// Its typical half round trip in microseconds, or 0 where it is not installed or fails.
double time_perftest(const std::string& transports, uint64_t bytes) {
  const int port = 20000 + static_cast<int>(getpid() % 20000);
  char command[512];
  std::snprintf(command, sizeof command,
                "command -v ucx_perftest >/dev/null && export UCX_TLS=%s UCX_WARN_UNUSED_ENV_VARS=n && "
                "{ timeout 60 ucx_perftest -p %d >/dev/null 2>&1 & sleep 1; "
                "timeout 60 ucx_perftest 127.0.0.1 -p %d -t ucp_am_lat -s %zu -n %d -w 20 2>/dev/null; wait; }",
                transports.c_str(), port, port, static_cast<size_t>(bytes), rounds_for(bytes));
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

// Each figure is the median of several passes, which alternate so that a busy machine disturbs all alike.
void print_table(const std::string& transports, bool json) {
  const std::vector<uint64_t> sizes{4 << 10, 32 << 10, 64 << 10, 1 << 20, largest};
  constexpr int passes = 5;
  struct column {
    std::function<std::vector<double>()> measure;
    std::vector<std::vector<double>> by_size;
  };
  std::vector<column> columns{{[&] { return time_raw(transports, sizes); }, {}},
                              {[&] { return time_wire(transports, sizes, false, false); }, {}},
                              {[&] { return time_wire(transports, sizes, false, true); }, {}},
                              {[&] { return time_wire(transports, sizes, true, false); }, {}}};
  for (auto& one : columns) one.by_size.resize(sizes.size());
  for (int pass = 0; pass < passes; ++pass)
    for (auto& one : columns) {
      const auto times = one.measure();
      for (size_t i = 0; i < sizes.size(); ++i) one.by_size[i].push_back(times[i]);
    }
  if (!json)
    std::printf("\n%s, half round trip in us (median)\n%10s %10s %10s %8s %12s %14s %10s\n", transports.c_str(),
                "bytes", "raw", "wire", "ratio", "wire, actor", "wire, checked", "perftest");
  for (size_t i = 0; i < sizes.size(); ++i) {
    double figure[4];
    for (size_t c = 0; c < 4; ++c) figure[c] = median(columns[c].by_size[i]);
    const double perftest = time_perftest(transports, sizes[i]);
    if (json) {
      std::printf(
          R"({"transports":"%s","bytes":%zu,"raw_us":%.3f,"wire_us":%.3f,"actor_us":%.3f,"checked_us":%.3f,"perftest_us":%.3f})"
          "\n",
          transports.c_str(), static_cast<size_t>(sizes[i]), figure[0], figure[1], figure[2], figure[3], perftest);
    } else {
      std::printf("%10zu %10.2f %10.2f %8.2f %12.2f %14.2f %10.2f\n", static_cast<size_t>(sizes[i]), figure[0],
                  figure[1], figure[1] / figure[0], figure[2], figure[3], perftest);
    }
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace troupe

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode.starts_with("--serve")) prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (mode == "--serve-wire" && argc == 4) troupe::serve_wire(argv[2], argv[3][0] == '1');
  if (mode == "--serve-raw" && argc == 3) troupe::serve_raw(argv[2]);
  if (!mode.empty() && mode != "--json") {
    std::fprintf(stderr, "usage: wire_bench [--json]\n");
    return 2;
  }
  for (const char* transports : {"posix,cma,tcp", "tcp"}) troupe::print_table(transports, mode == "--json");
}
