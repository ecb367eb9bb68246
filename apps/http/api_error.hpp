// A refusal as an OpenAI client expects it: an HTTP status and {"error": {message, type, param, code}}.
//
// Pure values and functions; any thread.
#pragma once

#include <string>

#include "runtime/error.hpp"

namespace troupe::http {

struct api_error {
  int status = 400;
  std::string message;  // what was wrong, and what to do
  std::string type = "invalid_request_error";
  std::string param = {};  // the offending field; empty: null in JSON
  std::string code = {};   // for programs; empty: null in JSON
};

// A refused field of a request body: status 400.
api_error bad_field(std::string param, std::string message, std::string code = "invalid_value");

// What the serving side answered, in HTTP's words: exhausted is 429, unavailable and cancelled are
// 503, not_found is 404, internal is 500, everything else is the caller's fault and 400.
api_error to_api_error(const error& cause);

// The JSON document.
std::string render(const api_error& refusal);

}  // namespace troupe::http
