// Errors and invariants.
//
// Two kinds, never mixed. A broken invariant of our own stops the process with a message (`check`,
// always compiled in). Bad input, a peer's data, files and the network give an `error` value: an
// enum for programs and a sentence for people that says what was wrong, where, and what to do.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace troupe {

enum class errc {
  invalid_argument,  // the caller's or user's input is wrong
  not_found,         // a file, name or model that is not there
  malformed,         // a file or message that breaks its format
  unsupported,       // well-formed, but beyond what this build or machine can do
  exhausted,         // a configured limit is reached; try later
  unavailable,       // a peer, device or store cannot be reached
  cancelled,         // given up on purpose
  internal,          // a failure of the operating system or a library
};

// The enum's name, for logs and JSON ("malformed").
std::string_view name(errc code);

struct error {
  errc code = errc::internal;
  std::string message;
};

// A value or an error. Requires: `value()` only when it holds one.
template <class Value>
class [[nodiscard]] result {
 public:
  result(Value value) : state_(std::in_place_index<0>, std::move(value)) {}
  result(error failure) : state_(std::in_place_index<1>, std::move(failure)) {}

  explicit operator bool() const { return state_.index() == 0; }
  Value& value() & { return std::get<0>(state_); }
  const Value& value() const& { return std::get<0>(state_); }
  Value&& value() && { return std::get<0>(std::move(state_)); }
  Value& operator*() & { return value(); }
  const Value& operator*() const& { return value(); }
  Value&& operator*() && { return std::move(*this).value(); }
  Value* operator->() { return &value(); }
  const Value* operator->() const { return &value(); }
  const error& failure() const { return std::get<1>(state_); }

 private:
  std::variant<Value, error> state_;
};

template <>
class [[nodiscard]] result<void> {
 public:
  result() = default;
  result(error failure) : failure_(std::move(failure)) {}

  explicit operator bool() const { return !failure_.has_value(); }
  const error& failure() const { return *failure_; }

 private:
  std::optional<error> failure_;
};

// Prints "check failed: <what> at <file>:<line>" and aborts.
[[noreturn]] void check_failed(const char* condition, std::string_view what, const char* file, int line);

}  // namespace troupe

// Stops the process when an invariant of our own is broken. `what` is a sentence.
#define TROUPE_CHECK(condition, what)                                 \
  do {                                                                \
    if (!(condition)) [[unlikely]]                                    \
      ::troupe::check_failed(#condition, (what), __FILE__, __LINE__); \
  } while (false)
