// The node processes that `troupe serve` starts, watches and starts again.
//
// A child dies with its parent, however that ends (PR_SET_PDEATHSIG), and inherits no descriptor. Used by
// the main thread only, which must not end before the children do; `request_kill` may be called from
// any thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/error.hpp"

namespace troupe {

class child_processes {
 public:
  // Starts `/proc/self/exe arguments...` as child `key`.
  // Fails: internal (no process can be made).
  result<void> start(uint16_t key, std::vector<std::string> arguments);

  // Child `key`, if there is one, is about to end and is not started again.
  void expect_end(uint16_t key);

  // Sends every child a signal. Children inherit SIGUSR1 and SIGUSR2 blocked: neither ends one that has just begun.
  void signal(int number) const;

  // Asks for a process to be killed if it is a child of ours (SIGKILL, so that a stopped one dies too);
  // `tend` does it.
  void request_kill(pid_t process);

  // Kills what was asked for, collects children that ended and starts them again.
  // Fails: unavailable when a child keeps ending right after its start.
  result<void> tend();

  // Ends all: SIGTERM, and SIGKILL for those that do not follow within a second.
  void end();

 private:
  struct child {
    pid_t process = 0;
    std::vector<std::string> arguments;
    std::chrono::steady_clock::time_point started;
    int quick_ends = 0;  // in a row, of its own accord
    bool leaves = false;
  };

  result<void> spawn(child& started);

  std::map<uint16_t, child> children_;
  std::mutex mutex_;
  std::vector<pid_t> to_kill_;
};

}  // namespace troupe
