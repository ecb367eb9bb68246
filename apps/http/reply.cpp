#include "apps/http/reply.hpp"

#include <algorithm>
#include <array>
#include <charconv>

namespace troupe::http {

namespace {

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 413: return "Content Too Large";
    case 415: return "Unsupported Media Type";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 503: return "Service Unavailable";
    default: return "Internal Server Error";
  }
}

char lower(char letter) { return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter; }

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  return first == std::string_view::npos ? std::string_view()
                                         : text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

}  // namespace

reply to_reply(const api_error& refusal) {
  reply answer{.status = refusal.status, .body = render(refusal)};
  if (refusal.status == 401) {
    answer.headers.emplace_back("WWW-Authenticate", "Bearer");
  }
  if (refusal.status == 429 || refusal.status == 503) {
    // Requests are short and capacity frees by the second; a client's own back-off does the rest.
    answer.headers.emplace_back("Retry-After", "1");
  }
  return answer;
}

std::string serialize(const reply& answer, bool keep_alive, bool head_only) {
  std::string bytes = "HTTP/1.1 " + std::to_string(answer.status);
  bytes.append(" ").append(reason_phrase(answer.status));
  bytes.append("\r\nContent-Type: ").append(answer.content_type);
  bytes.append("\r\nContent-Length: ").append(std::to_string(answer.body.size()));
  for (const auto& [name, value] : answer.headers) {
    bytes.append("\r\n").append(name).append(": ").append(value);
  }
  bytes.append("\r\nConnection: ").append(keep_alive ? "keep-alive" : "close").append("\r\n\r\n");
  if (!head_only) {
    bytes.append(answer.body);
  }
  return bytes;
}

std::string stream_head(bool chunked, bool keep_alive) {
  std::string bytes =
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n";
  // Proxies such as nginx would collect a stream into pieces without this.
  bytes.append("X-Accel-Buffering: no\r\n");
  bytes.append(chunked ? "Transfer-Encoding: chunked\r\n" : "");
  return bytes.append("Connection: ").append(keep_alive ? "keep-alive" : "close").append("\r\n\r\n");
}

std::string chunk(std::string_view bytes) {
  std::array<char, 16> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), bytes.size(), 16).ptr;
  std::string framed(digits.data(), end);
  framed.reserve(framed.size() + bytes.size() + 4);
  return framed.append("\r\n").append(bytes).append("\r\n");
}

bool equal_in_constant_time(std::string_view left, std::string_view right) {
  // The length of the key may show, its bytes may not; `volatile` keeps the loop as written.
  volatile unsigned char difference = left.size() == right.size() ? 0 : 1;
  for (size_t i = 0; i < left.size(); ++i) {
    const char other = right.empty() ? '\0' : right[i % right.size()];
    difference = static_cast<unsigned char>(difference | static_cast<unsigned char>(left[i] ^ other));
  }
  return difference == 0;
}

bool is_json(std::string_view content_type) {
  const auto media = trimmed(content_type.substr(0, content_type.find(';')));
  constexpr std::string_view wanted = "application/json";
  return std::equal(media.begin(), media.end(), wanted.begin(), wanted.end(),
                    [](char a, char b) { return lower(a) == b; });
}

std::string percent_decoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(&text[i + 1], &text[i + 1] + 2, value, 16).ptr == &text[i + 1] + 2) {
      decoded += static_cast<char>(value);
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

}  // namespace troupe::http
