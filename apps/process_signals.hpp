// What signals ask of a process of ours. Used by its main thread only.
//
// SIGINT and SIGTERM end it in order; SIGHUP too, since the terminal is gone. SIGUSR2 pauses the timeline that
// `--trace` writes and SIGUSR1 goes on with it: a trace of an hour's interesting minute, or a benchmark that compares
// steps with and without one. `troupe serve` hands both on to the processes that it started.
#pragma once

#include <signal.h>

#include <chrono>

namespace troupe {

enum class signal_wish { none, end, pause_trace, resume_trace };

class process_signals {
 public:
  // Blocks the signals, so that only `wait` takes them. Made before any thread starts.
  process_signals();

  // The next wish, or `none` when there is none within `patience`.
  signal_wish wait(std::chrono::milliseconds patience) const;

 private:
  sigset_t set_;
};

}  // namespace troupe
