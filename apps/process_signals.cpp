#include "apps/process_signals.hpp"

namespace troupe {

process_signals::process_signals() {
  sigemptyset(&set_);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) sigaddset(&set_, number);
  pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

signal_wish process_signals::wait(std::chrono::milliseconds patience) const {
  const timespec longest{patience.count() / 1000, patience.count() % 1000 * 1'000'000};
  switch (sigtimedwait(&set_, nullptr, &longest)) {
    case SIGINT:
    case SIGTERM:
    case SIGHUP: return signal_wish::end;
    case SIGUSR1: return signal_wish::resume_trace;
    case SIGUSR2: return signal_wish::pause_trace;
    default: return signal_wish::none;
  }
}

}  // namespace troupe
