#include "apps/http/routes.hpp"

#include <optional>

#include "apps/http/openai_response.hpp"

namespace troupe::http {

namespace {

constexpr std::string_view model_prefix = "/v1/models/";

bool is_post_path(std::string_view path) { return path == "/v1/chat/completions" || path == "/v1/completions"; }

bool is_get_path(std::string_view path) {
  return path == "/health" || path == "/metrics" || path == "/cluster" || path == "/steps" || path == "/load" ||
         path == "/v1/models" || (path.starts_with(model_prefix) && path.size() > model_prefix.size());
}

bool is_authorized(std::string_view authorization, std::string_view api_key) {
  constexpr std::string_view scheme = "bearer ";
  if (api_key.empty()) return true;
  if (authorization.size() < scheme.size()) return false;
  for (size_t i = 0; i < scheme.size(); ++i) {
    if ((authorization[i] | 0x20) != scheme[i]) return false;
  }
  return equal_in_constant_time(authorization.substr(scheme.size()), api_key);
}

std::optional<api_error> check_method(std::string_view method, std::string_view path) {
  const bool posts = is_post_path(path);
  if (posts ? method == "POST" : (method == "GET" || method == "HEAD")) return std::nullopt;
  return api_error{.status = 405,
                   .message = std::string(path) + " takes " + (posts ? "POST" : "GET") + " requests only.",
                   .code = "method_not_allowed"};
}

// Insisting on the type also keeps web pages of other origins out: a browser lets them send forms and
// plain text here unasked, but not JSON.
std::optional<api_error> check_media(const request_view& request) {
  if (!is_json(request.content_type)) {
    return api_error{.status = 415,
                     .message = "The body must be JSON; send the header 'Content-Type: application/json'.",
                     .code = "unsupported_media_type"};
  }
  if (!request.content_encoding.empty() && request.content_encoding != "identity") {
    return api_error{.status = 415,
                     .message = "Compressed bodies are not supported; leave out 'Content-Encoding'.",
                     .code = "unsupported_media_type"};
  }
  return std::nullopt;
}

reply answer_model(std::string_view path, const api_backend& backend) {
  const auto wanted = percent_decoded(path.substr(model_prefix.size()));
  const auto served = backend.model_name();
  if (wanted == served) return {.body = render_model(served, backend.model_created_s())};
  return to_reply({.status = 404,
                   .message = "The model '" + wanted + "' is not served here; this server has '" + served + "'.",
                   .param = "model",
                   .code = "model_not_found"});
}

reply answer_get(std::string_view path, const api_backend& backend) {
  if (path == "/health") {
    const bool healthy = backend.healthy();
    return {.status = healthy ? 200 : 503, .body = healthy ? R"({"status":"ok"})" : R"({"status":"unavailable"})"};
  }
  if (path == "/metrics")
    return {.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = backend.metrics_text()};
  if (path == "/steps") return {.content_type = "text/plain; charset=utf-8", .body = backend.steps_text()};
  if (path == "/load") return {.content_type = "text/csv; charset=utf-8", .body = backend.load_csv()};
  if (path == "/cluster") return {.body = backend.cluster_json()};
  if (path == "/v1/models") return {.body = render_model_list(backend.model_name(), backend.model_created_s())};
  return answer_model(path, backend);
}

}  // namespace

routed route(const request_view& request, std::string_view api_key, const api_backend& backend) {
  const auto path = request.target.substr(0, request.target.find('?'));
  if (path != "/health" && !is_authorized(request.authorization, api_key)) {
    return to_reply({.status = 401,
                     .message = request.authorization.empty()
                                    ? "This server asks for an API key; send the header 'Authorization: Bearer KEY'."
                                    : "The API key is not the one this server was started with.",
                     .code = "invalid_api_key"});
  }
  if (!is_post_path(path) && !is_get_path(path)) {
    return to_reply({.status = 404,
                     .message = "There is no '" + std::string(path.substr(0, 128)) +
                                "' here; see /v1/models, "
                                "/v1/chat/completions, /v1/completions, /health, /metrics, /steps, /load and /cluster.",
                     .code = "unknown_url"});
  }
  if (const auto refusal = check_method(request.method, path)) {
    auto answer = to_reply(*refusal);
    answer.headers.emplace_back("Allow", is_post_path(path) ? "POST" : "GET, HEAD");
    return answer;
  }
  if (!is_post_path(path)) return answer_get(path, backend);
  if (const auto refusal = check_media(request)) return to_reply(*refusal);
  auto parsed = path == "/v1/completions" ? parse_completion_request(request.body) : parse_chat_request(request.body);
  if (const auto* refusal = std::get_if<api_error>(&parsed)) return to_reply(*refusal);
  return std::get<api_request>(std::move(parsed));
}

}  // namespace troupe::http
