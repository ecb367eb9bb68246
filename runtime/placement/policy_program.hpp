// Any program as a placement policy: it reads one line of JSON and writes one.
//
// The program is started anew for each plan, by the shell. It may fail in any way: exit, crash, hang, write
// nonsense or without end. Each is a sentence in the error, and the program and all that it started are killed
// before the call returns. The call blocks for as long as the program takes: call it from a thread of its own,
// never from an actor.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/placement/policy.hpp"

namespace troupe {

struct program_limits {
  uint32_t timeout_ms = 10'000;
  uint64_t output_bytes_max = 16 << 20;
};

// Runs `command` with the line on its standard input; its first line of output. Fails: cancelled after the
// timeout, exhausted when it writes too much, unavailable when it ends without an answer (with its last words).
result<std::string> run_program(const std::string& command, const std::string& line, const program_limits& limits);

// Both together, as a policy.
placement_policy program_policy(std::string command, program_limits limits);

}  // namespace troupe
