// One generation's conversation with its client: runtime events in, HTTP content out.
//
// Owned by a connection, on whose strand every call is made. It knows no sockets, so that what a
// client sees is tested without one. A refusal before the stream has begun is an HTTP status; after
// that it is an error event, and `[DONE]` does not follow.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "actors/api.hpp"
#include "apps/http/openai_request.hpp"
#include "apps/http/openai_response.hpp"
#include "apps/http/reply.hpp"

namespace troupe::http {

// What is to be sent after some events.
struct exchange_output {
  std::optional<reply> whole;  // the one response, without `stream` or refused before it began
  bool begin_stream = false;   // send the stream's head first
  std::string events;          // server-sent events, possibly none
  bool done = false;           // nothing follows
  bool cancel = false;         // with done: the backend goes on and is to be told
};

class exchange {
 public:
  // `head`: what the request decides and the server knows; id and seed are filled in here.
  // `id_prefix` makes ids unique among servers. `bytes_max`: the longest whole answer.
  exchange(const api_request& request, response_head head, std::string id_prefix, size_t bytes_max);

  // Adds to `output`. Events after the end are ignored.
  void on_event(generation_event event, exchange_output& output);

 private:
  void on(generation_accepted& accepted, exchange_output& output);
  void on(generation_delta& delta, exchange_output& output);
  void on(generation_finished& finished, exchange_output& output);
  void on(generation_failed& failed, exchange_output& output);
  void fail(const api_error& refusal, exchange_output& output);

  response_head head_;
  std::string id_prefix_;
  bool stream_;
  bool begun_ = false;
  bool ended_ = false;
  size_t bytes_max_;
  uint32_t prompt_tokens_ = 0;
  std::string text_;                   // without `stream`: the answer so far
  std::vector<token_logprob> tokens_;  // without `stream`, with logprobs
  uint64_t characters_ = 0;            // of the answer so far
  size_t bytes_ = 0;                   // that the whole answer holds so far
};

}  // namespace troupe::http
