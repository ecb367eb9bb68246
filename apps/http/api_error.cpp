#include "apps/http/api_error.hpp"

#include <utility>

#include "apps/http/strict_json.hpp"

namespace troupe::http {

api_error bad_field(std::string param, std::string message, std::string code) {
  return {.status = 400, .message = std::move(message), .param = std::move(param), .code = std::move(code)};
}

api_error to_api_error(const error& cause) {
  const auto make = [&](int status, const char* type, const char* param, const char* code) {
    return api_error{status, cause.message, type, param, code};
  };
  switch (cause.code) {
    case errc::invalid_argument:
    case errc::malformed: return make(400, "invalid_request_error", "", "invalid_value");
    case errc::unsupported: return make(400, "invalid_request_error", "", "unsupported");
    case errc::not_found: return make(404, "invalid_request_error", "model", "model_not_found");
    case errc::exhausted: return make(429, "rate_limit_error", "", "rate_limit_exceeded");
    case errc::unavailable: return make(503, "server_error", "", "unavailable");
    case errc::cancelled: return make(503, "server_error", "", "cancelled");
    case errc::internal: break;
  }
  return make(500, "server_error", "", "internal_error");
}

std::string render(const api_error& refusal) {
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
  };
  return dump({{"error",
                {{"message", refusal.message},
                 {"type", refusal.type},
                 {"param", text_or_null(refusal.param)},
                 {"code", text_or_null(refusal.code)}}}});
}

}  // namespace troupe::http
