// Threads of processes that share CPUs.
#pragma once

#include <pthread.h>
#include <sched.h>

namespace troupe {

// From now on the calling thread, when it wakes, does not interrupt the one that runs: it begins when that one sleeps
// or has had its time (SCHED_BATCH). Where more compute threads than CPUs work on one step, what one of them waits for
// comes in parts from all the others, and to switch threads for each part takes time from the next part.
// Does nothing where the system refuses.
inline void be_patient() {
  const sched_param parameters{};
  pthread_setschedparam(pthread_self(), SCHED_BATCH, &parameters);
}

}  // namespace troupe
