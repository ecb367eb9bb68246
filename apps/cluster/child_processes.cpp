#include "apps/cluster/child_processes.hpp"

#include <fcntl.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

namespace troupe {

namespace {

constexpr auto quick_end = std::chrono::seconds(3);
constexpr int quick_ends_max = 5;
constexpr auto end_patience = std::chrono::seconds(1);

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) return std::string("killed by ") + strsignal(WTERMSIG(status));
  return "exit code " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

result<void> child_processes::start(uint16_t key, std::vector<std::string> arguments) {
  child made;
  made.arguments = std::move(arguments);
  if (auto began = spawn(made); !began) return began;
  children_[key] = std::move(made);
  return {};
}

result<void> child_processes::spawn(child& started) {
  std::vector<char*> arguments;
  for (auto& argument : started.arguments) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t process = fork();
  if (process < 0) return error{errc::internal, std::string("no process can be started: ") + std::strerror(errno)};
  if (process == 0) {
    // Only calls that are safe between fork and exec in a program with threads.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    sigaddset(&blocked, SIGUSR2);
    sigprocmask(SIG_SETMASK, &blocked, nullptr);
    syscall(SYS_close_range, 3U, ~0U, 0U);
    execv("/proc/self/exe", arguments.data());
    _exit(127);
  }
  started.process = process;
  started.started = std::chrono::steady_clock::now();
  return {};
}

void child_processes::expect_end(uint16_t key) {
  if (const auto known = children_.find(key); known != children_.end()) known->second.leaves = true;
}

void child_processes::signal(int number) const {
  for (const auto& [key, held] : children_) kill(held.process, number);
}

void child_processes::request_kill(pid_t process) {
  const std::lock_guard lock(mutex_);
  to_kill_.push_back(process);
}

result<void> child_processes::tend() {
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, held] : children_)
      if (std::find(to_kill_.begin(), to_kill_.end(), held.process) != to_kill_.end()) kill(held.process, SIGKILL);
    to_kill_.clear();
  }
  for (auto at = children_.begin(); at != children_.end();) {
    const auto current = at++;
    auto& [key, held] = *current;
    int status = 0;
    if (waitpid(held.process, &status, WNOHANG) != held.process) continue;
    if (held.leaves) {
      spdlog::info("the process of node {} has ended, drained ({})", key, how_it_ended(status));
      children_.erase(current);
      continue;
    }
    const bool quick = WIFEXITED(status) && std::chrono::steady_clock::now() - held.started < quick_end;
    held.quick_ends = quick ? held.quick_ends + 1 : 0;
    if (held.quick_ends >= quick_ends_max)
      return error{errc::unavailable, "the process of node " + std::to_string(key) + " ends right after its start (" +
                                          how_it_ended(status) + "); its last messages are above"};
    spdlog::warn("the process of node {} ended ({}); starting another", key, how_it_ended(status));
    if (auto again = spawn(held); !again) {
      children_.erase(current);  // its id is no longer ours to signal
      return again;
    }
  }
  return {};
}

void child_processes::end() {
  for (const auto& [key, held] : children_) {
    kill(held.process, SIGTERM);
    kill(held.process, SIGCONT);
  }
  const auto deadline = std::chrono::steady_clock::now() + end_patience;
  while (!children_.empty()) {
    const bool late = std::chrono::steady_clock::now() > deadline;
    std::erase_if(children_, [late](const auto& entry) {
      if (late) kill(entry.second.process, SIGKILL);
      return waitpid(entry.second.process, nullptr, late ? 0 : WNOHANG) != 0;
    });
    if (!children_.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace troupe
