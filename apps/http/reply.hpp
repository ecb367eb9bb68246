// HTTP/1.1 responses as bytes, and the few pieces of HTTP text that routing looks at.
//
// Pure functions; any thread. Requests are parsed by Boost.Beast, where strangers' bytes come in;
// responses hold only what this server says and need no library.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/http/api_error.hpp"

namespace troupe::http {

// A whole response. Requires: no header holds a line break.
struct reply {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  std::vector<std::pair<std::string, std::string>> headers = {};  // beyond the type, the length and the connection
};

// The refusal as a reply, with the headers its status calls for (Retry-After, WWW-Authenticate).
reply to_reply(const api_error& refusal);

// `head_only`: the answer to HEAD, everything but the body.
std::string serialize(const reply& answer, bool keep_alive, bool head_only = false);

// The head of a stream of server-sent events, which follow in chunks, or, to an HTTP/1.0 client, bare
// until the connection closes.
std::string stream_head(bool chunked, bool keep_alive);
// One chunk of chunked transfer coding. Requires: `bytes` is not empty, which would end the stream.
std::string chunk(std::string_view bytes);
inline constexpr std::string_view last_chunk = "0\r\n\r\n";

// Compares without stopping at the first difference, whose position an attacker could time.
bool equal_in_constant_time(std::string_view left, std::string_view right);

// Whether a Content-Type names JSON, whatever its parameters and case.
bool is_json(std::string_view content_type);

// %41 -> A; an incomplete or wrong escape stays as it is.
std::string percent_decoded(std::string_view text);

}  // namespace troupe::http
