#include "runtime/placement/policy_program.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>

#include "runtime/placement/policy_json.hpp"

namespace troupe {

namespace {

constexpr size_t last_words_max = 400;

class descriptor {
 public:
  descriptor() = default;
  explicit descriptor(int number) : number_(number) {}
  descriptor(descriptor&& other) noexcept : number_(other.number_) { other.number_ = -1; }
  descriptor& operator=(descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~descriptor() { close(); }

  void close() {
    if (number_ >= 0) ::close(number_);
    number_ = -1;
  }
  int get() const { return number_; }
  bool open() const { return number_ >= 0; }

 private:
  int number_ = -1;
};

error internal(const char* what) {
  return {errc::internal, std::string("a policy program cannot be started: ") + what + ": " + std::strerror(errno)};
}

// A socket pair rather than a pipe: writing to a program that is gone then gives an error, not a signal.
struct channel {
  descriptor ours;
  descriptor theirs;

  bool open() {
    std::array<int, 2> ends{};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return false;
    ours = descriptor(ends[0]);
    theirs = descriptor(ends[1]);
    return fcntl(ours.get(), F_SETFL, O_NONBLOCK) == 0;
  }
};

class program_run {
 public:
  program_run(const std::string& line, const program_limits& limits) : line_(line + "\n"), limits_(limits) {}
  program_run(const program_run&) = delete;
  program_run& operator=(const program_run&) = delete;
  ~program_run() { end(); }

  result<std::string> answer(const std::string& command) {
    if (auto started = start(command); !started) return started.failure();
    for (;;) {
      std::array<pollfd, 4> waiting = {pollfd{in_.ours.get(), POLLOUT, 0}, pollfd{out_.ours.get(), POLLIN, 0},
                                       pollfd{err_.ours.get(), POLLIN, 0}, pollfd{timer_.get(), POLLIN, 0}};
      if (poll(waiting.data(), waiting.size(), -1) < 0) {
        if (errno == EINTR) continue;
        return internal("poll");
      }
      if (waiting[2].revents != 0) hear_errors();
      if (waiting[0].revents != 0) write();
      if (waiting[1].revents != 0) {
        const bool more = read();
        if (const auto newline = output_.find('\n'); newline != std::string::npos) return output_.substr(0, newline);
        if (output_.size() > limits_.output_bytes_max)
          return error{errc::exhausted, "it wrote more than " + std::to_string(limits_.output_bytes_max) +
                                            " bytes without ending its line"};
        if (!more) return ended();
      }
      if (waiting[3].revents != 0)
        return error{errc::cancelled, "it did not answer within " + std::to_string(limits_.timeout_ms) + " ms"};
    }
  }

 private:
  result<void> start(const std::string& command) {
    if (!in_.open() || !out_.open() || !err_.open()) return internal("socketpair");
    timer_ = descriptor(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC));
    const itimerspec when{{0, 0}, {limits_.timeout_ms / 1000, (limits_.timeout_ms % 1000) * 1'000'000L + 1}};
    if (!timer_.open() || timerfd_settime(timer_.get(), 0, &when, nullptr) != 0) return internal("timerfd");
    const pid_t parent = getpid();
    process_ = fork();
    if (process_ < 0) return internal("fork");
    if (process_ == 0) {
      // Only calls that are safe between fork and exec in a program with threads.
      setpgid(0, 0);
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(127);
      sigset_t none;
      sigemptyset(&none);
      sigprocmask(SIG_SETMASK, &none, nullptr);
      signal(SIGPIPE, SIG_DFL);
      dup2(in_.theirs.get(), 0);
      dup2(out_.theirs.get(), 1);
      dup2(err_.theirs.get(), 2);
      syscall(SYS_close_range, 3U, ~0U, 0U);
      execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
      _exit(127);
    }
    setpgid(process_, process_);
    for (auto* each : {&in_, &out_, &err_}) each->theirs.close();
    return {};
  }

  void write() {
    const auto sent = send(in_.ours.get(), line_.data() + written_, line_.size() - written_, MSG_NOSIGNAL);
    if (sent > 0) written_ += static_cast<size_t>(sent);
    // All said, or nobody listens: a program need not read.
    if (written_ == line_.size() || (sent < 0 && errno != EAGAIN && errno != EINTR)) in_.ours.close();
  }

  // False at the end of the output.
  bool read() {
    std::array<char, 65536> bytes{};
    const auto count = recv(out_.ours.get(), bytes.data(), bytes.size(), 0);
    if (count > 0) output_.append(bytes.data(), static_cast<size_t>(count));
    return count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR));
  }

  void hear_errors() {
    std::array<char, 4096> bytes{};
    const auto count = recv(err_.ours.get(), bytes.data(), bytes.size(), 0);
    if (count > 0) errors_.append(bytes.data(), static_cast<size_t>(count));
    if (errors_.size() > 2 * last_words_max) errors_.erase(0, errors_.size() - last_words_max);
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) err_.ours.close();
  }

  // How the process ended, left for `end` to collect so that its group can still be named; -1: it has not.
  int status() {
    siginfo_t info{};
    if (waitid(P_PID, static_cast<id_t>(process_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
      return -1;
    exit_code_ = info.si_code == CLD_EXITED ? info.si_status : -1;
    return info.si_status;
  }

  // After the end of its output: an answer without a newline if it ended well, else why not.
  result<std::string> ended() {
    constexpr int look_again_ms = 5;
    int how = status();
    for (bool late = false; how < 0 && !late; how = status()) {
      std::array<pollfd, 2> waiting = {pollfd{err_.ours.get(), POLLIN, 0}, pollfd{timer_.get(), POLLIN, 0}};
      if (poll(waiting.data(), waiting.size(), look_again_ms) < 0) continue;
      if (waiting[0].revents != 0) hear_errors();
      late = waiting[1].revents != 0;
    }
    if (err_.ours.open()) hear_errors();
    if (how == 0 && exit_code_ == 0) return output_;
    std::string why = "it closed its output without an answer";
    if (how > 0)
      why = exit_code_ > 0 ? "it ended with exit code " + std::to_string(how)
                           : std::string("it was killed by a signal: ") + strsignal(how);
    while (!errors_.empty() && (errors_.back() == '\n' || errors_.back() == ' ')) errors_.pop_back();
    if (errors_.size() > last_words_max) errors_.erase(0, errors_.size() - last_words_max);
    return error{errc::unavailable, why + (errors_.empty() ? "" : "; its last words: " + errors_)};
  }

  void end() const {
    if (process_ <= 0) return;
    kill(-process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }

  const std::string line_;
  const program_limits limits_;
  channel in_;
  channel out_;
  channel err_;
  descriptor timer_;
  pid_t process_ = -1;
  int exit_code_ = -1;
  size_t written_ = 0;
  std::string output_;
  std::string errors_;
};

}  // namespace

result<std::string> run_program(const std::string& command, const std::string& line, const program_limits& limits) {
  return program_run(line, limits).answer(command);
}

placement_policy program_policy(std::string command, program_limits limits) {
  return [command = std::move(command), limits](const placement_input& input) -> result<placement_proposal> {
    const auto refuse = [&](const error& why) {
      return error{why.code, "the policy program `" + command + "` is not followed: " + why.message};
    };
    const auto line = run_program(command, to_json_line(input), limits);
    if (!line) return refuse(line.failure());
    auto answer = parse_answer(*line, input.load.layers, input.load.experts);
    if (!answer) return refuse(answer.failure());
    return answer;
  };
}

}  // namespace troupe
