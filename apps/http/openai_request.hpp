// The bodies of POST /v1/chat/completions and /v1/completions, understood.
//
// Pure functions; any thread. A value that is out of range, of the wrong type or beyond what is
// served is refused with a sentence, never rounded or dropped: a caller who sets `temperature` to
// "0.7" should learn of it before paying for the tokens. Unknown fields are ignored, unless they
// look like a misspelt known one.
#pragma once

#include <string_view>
#include <variant>

#include "actors/api.hpp"
#include "apps/http/api_error.hpp"

namespace troupe::http {

enum class api_kind : uint8_t { chat, completion };

struct api_request {
  api_kind kind = api_kind::chat;
  generation_request generation = {};
  bool stream = false;
  bool include_usage = false;  // only with stream: a last chunk with the token counts
  bool logprobs = false;       // report the chosen tokens' log-probabilities
};

using parsed_request = std::variant<api_request, api_error>;

parsed_request parse_chat_request(std::string_view body);
parsed_request parse_completion_request(std::string_view body);

}  // namespace troupe::http
