// The check of an invariant of our own, for code below `runtime/`. Always compiled in.
#pragma once

namespace troupe::kernels {

// Prints "kernels: <sentence>" and aborts.
[[noreturn]] void broken(const char* sentence);

// Requires: `sentence` says what the caller must guarantee.
inline void require(bool holds, const char* sentence) {
  if (!holds) [[unlikely]]
    broken(sentence);
}

}  // namespace troupe::kernels
