// What a front end (HTTP, the command line, a test) asks of the `api_server` actor, and what it hears.
//
// The adapter in front translates a protocol into these structs; it knows sockets, and the actor does
// not. Tokenising, detokenising, stop strings and exactly-once delivery are the actor's.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/error.hpp"
#include "runtime/model/chat_template.hpp"

namespace troupe {

struct generation_request {
  std::string model;                   // empty: the served one
  std::vector<chat_message> messages;  // chat; rendered with the model's template
  std::optional<std::string> prompt;   // completion; BOS is prepended
  std::vector<int32_t> prompt_ids;     // completion given as token ids; taken as they are
  std::optional<uint32_t> max_tokens;  // default: the configured one
  float temperature = 1.0F;            // 0 .. 2; 0 is greedy
  float top_p = 1.0F;                  // (0, 1]
  std::optional<uint64_t> seed;        // drawn and reported when absent
  std::vector<std::string> stop;       // at most 4, none empty
  bool ignore_eos = false;             // benchmarks: generate max_tokens whatever comes
};

enum class finish_reason : uint8_t { stop, length, cancelled };

// One event of a request's stream, in order: accepted, delta*, then finished or failed (exactly one).
struct generation_accepted {
  uint64_t request = 0;
  uint32_t prompt_tokens = 0;
  uint64_t seed = 0;
};
struct generation_delta {
  uint32_t index = 0;  // of the first token in it
  std::string text;    // whole UTF-8 characters; may be empty
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
};
struct generation_finished {
  finish_reason reason = finish_reason::stop;
  uint32_t completion_tokens = 0;
};
struct generation_failed {
  error cause;  // invalid_argument, not_found (model), exhausted (overload), unavailable, internal
};
using generation_event = std::variant<generation_accepted, generation_delta, generation_finished, generation_failed>;

// Called on a thread of the runtime's; must not block.
using generation_sink = std::function<void(generation_event)>;

class api_backend {
 public:
  virtual ~api_backend() = default;

  // Starts a request; every outcome, refusal included, arrives through the sink (possibly before
  // this returns). The returned id is for `cancel` only.
  virtual uint64_t submit(generation_request request, generation_sink sink) = 0;
  // Gives a request up and frees what it holds; unknown and finished ids are ignored.
  virtual void cancel(uint64_t request) = 0;

  virtual std::string model_name() const = 0;
  virtual uint64_t model_created_s() const = 0;  // Unix seconds
  virtual bool healthy() const = 0;              // enough nodes to serve
  virtual std::string cluster_json() const = 0;  // the /cluster document
  virtual std::string metrics_text() const = 0;  // Prometheus exposition format
  virtual std::string steps_text() const = 0;    // the /steps document: where the time of steps goes
  virtual std::string load_csv() const = 0;      // the /load document: rows of each expert, window by window
};

}  // namespace troupe
