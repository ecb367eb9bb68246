// From a request to what is to be done: answer at once, or generate.
//
// Pure functions over the backend's cheap questions; called on the server's thread.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "actors/api.hpp"
#include "apps/http/openai_request.hpp"
#include "apps/http/reply.hpp"

namespace troupe::http {

struct request_view {
  std::string_view method;
  std::string_view target;  // as sent: path, and a query that is ignored
  std::string_view content_type = {};
  std::string_view content_encoding = {};
  std::string_view authorization = {};
  std::string_view body = {};
};

using routed = std::variant<reply, api_request>;

// `api_key` empty: everyone may ask. /health is open always, for load balancers that know no key.
routed route(const request_view& request, std::string_view api_key, const api_backend& backend);

}  // namespace troupe::http
