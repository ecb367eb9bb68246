#include "apps/http/openai_response.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <limits>

#include "apps/http/api_error.hpp"
#include "apps/http/exchange.hpp"
#include "apps/http/reply.hpp"
#include "tests/apps/http/fake_backend.hpp"

namespace troupe::http {

namespace {

using nlohmann::json;

response_head head_of(api_kind kind) {
  return {.kind = kind,
          .id = "id-1",
          .created_s = 99,
          .model = "m",
          .system_fingerprint = "fp",
          .seed = 18446744073709551615ULL};
}

// What the exchange makes of a request whose events `play` emits.
exchange_output converse(const api_request& request, const fake_backend::script& play, size_t bytes_max = 1 << 20) {
  exchange conversation(request, head_of(request.kind), "0a-", bytes_max);
  exchange_output output;
  play(
      request.generation, [&](generation_event event) { conversation.on_event(std::move(event), output); },
      [] { return false; });
  return output;
}

// The `data:` payloads of a stream; the last one is "[DONE]".
std::vector<std::string> payloads(const std::string& events) {
  std::vector<std::string> found;
  for (size_t at = events.find("data: "); at != std::string::npos; at = events.find("data: ", at + 1)) {
    found.push_back(events.substr(at + 6, events.find("\n\n", at) - at - 6));
  }
  return found;
}

}  // namespace

TEST_CASE("a chat chunk has exactly OpenAI's fields, and the seed") {
  const auto chunk = json::parse(render_delta_chunk(head_of(api_kind::chat), one_token(0, "hi"), 0));
  CHECK(chunk ==
        json::parse(R"({"id":"id-1","object":"chat.completion.chunk","created":99,"model":"m","system_fingerprint":"fp",
    "seed":18446744073709551615,"choices":[{"index":0,"delta":{"content":"hi"},"logprobs":null,"finish_reason":null}]})"));
}

TEST_CASE("the role chunk, the finish chunk and the usage chunk have OpenAI's shape") {
  auto head = head_of(api_kind::chat);
  CHECK(json::parse(render_role_chunk(head))["choices"] ==
        json::parse(R"([{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}])"));
  CHECK(json::parse(render_finish_chunk(head, finish_reason::length))["choices"] ==
        json::parse(R"([{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}])"));
  CHECK_FALSE(json::parse(render_role_chunk(head)).contains("usage"));
  head.include_usage = true;
  CHECK(json::parse(render_role_chunk(head))["usage"].is_null());
  const auto usage = json::parse(render_usage_chunk(head, {3, 4}));
  CHECK(usage["choices"] == json::array());
  CHECK(usage["usage"] == json::parse(R"({"prompt_tokens":3,"completion_tokens":4,"total_tokens":7})"));
}

TEST_CASE("completion chunks carry text, without a role") {
  const auto head = head_of(api_kind::completion);
  const auto chunk = json::parse(render_delta_chunk(head, one_token(0, "hi"), 0));
  CHECK(chunk["object"] == "text_completion");
  CHECK(chunk["choices"] == json::parse(R"([{"index":0,"text":"hi","logprobs":null,"finish_reason":null}])"));
  CHECK(json::parse(render_finish_chunk(head, finish_reason::stop))["choices"] ==
        json::parse(R"([{"index":0,"text":"","logprobs":null,"finish_reason":"stop"}])"));
}

TEST_CASE("chat logprobs name the token's bytes, and the text of a delta goes with its last token") {
  auto head = head_of(api_kind::chat);
  head.logprobs = true;
  const generation_delta delta{
      .index = 3, .text = "\u00e9", .tokens = {1, 2}, .logprobs = {-1.5F, -std::numeric_limits<float>::infinity()}};
  const auto content = json::parse(render_delta_chunk(head, delta, 0))["choices"][0]["logprobs"]["content"];
  CHECK(content == json::parse(R"([{"token":"","logprob":-1.5,"bytes":[],"top_logprobs":[]},
                                   {"token":"é","logprob":-9999.0,"bytes":[195,169],"top_logprobs":[]}])"));
}

TEST_CASE("completion logprobs count offsets in characters") {
  auto head = head_of(api_kind::completion);
  head.logprobs = true;
  const auto logprobs = json::parse(
      render_whole(head, "\u00e9b", {{"\u00e9", -1}, {"b", -2}}, finish_reason::stop, {}))["choices"][0]["logprobs"];
  CHECK(logprobs ==
        json::parse(R"({"tokens":["é","b"],"token_logprobs":[-1.0,-2.0],"top_logprobs":null,"text_offset":[0,1]})"));
}

TEST_CASE("a delta without logprobs, or with too few, reports those it has") {
  CHECK(token_logprobs({.index = 0, .text = "a", .tokens = {1}, .logprobs = {}}).empty());
  CHECK(token_logprobs({.index = 0, .text = "a", .tokens = {1, 2}, .logprobs = {-1}}).size() == 1);
}

TEST_CASE("text that is not UTF-8 is repaired instead of stopping the server") {
  CHECK(render_delta_chunk(head_of(api_kind::chat), one_token(0, "a\xFF"), 0).find("a\xEF\xBF\xBD") !=
        std::string::npos);
}

TEST_CASE("an error document has message, type, param and code") {
  CHECK(json::parse(render(bad_field("seed", "No."))) ==
        json::parse(
            R"({"error":{"message":"No.","type":"invalid_request_error","param":"seed","code":"invalid_value"}})"));
  CHECK(json::parse(render(to_api_error({errc::internal, "Oh."})))["error"]["param"].is_null());
}

TEST_CASE("every kind of runtime error has its HTTP status") {
  const std::vector<std::pair<errc, int>> expected = {
      {errc::invalid_argument, 400}, {errc::malformed, 400},   {errc::unsupported, 400}, {errc::not_found, 404},
      {errc::exhausted, 429},        {errc::unavailable, 503}, {errc::cancelled, 503},   {errc::internal, 500}};
  for (const auto& [code, status] : expected) {
    CHECK(to_api_error({code, "x"}).status == status);
  }
}

TEST_CASE("the chunks of a stream, joined, are the whole answer, logprobs included") {
  for (const auto kind : {api_kind::chat, api_kind::completion}) {
    api_request request{.kind = kind, .logprobs = true};
    const auto whole = json::parse(converse(request, play_answer).whole.value().body);
    request.stream = true;
    const auto output = converse(request, play_answer);
    CHECK(output.begin_stream);
    CHECK(output.done);
    CHECK_FALSE(output.whole.has_value());
    const bool chat = kind == api_kind::chat;
    std::string text;
    json logprobs = json::array();
    json finish;
    auto events = payloads(output.events);
    REQUIRE(events.back() == "[DONE]");
    events.pop_back();
    for (const auto& event : events) {
      const auto chunk = json::parse(event);
      CHECK(chunk["id"] == whole["id"]);
      const auto& choice = chunk["choices"][0];
      text += chat ? choice["delta"].value("content", "") : choice["text"].get<std::string>();
      const auto& reported = choice["logprobs"];
      for (const auto& each : reported.is_null() ? json::array() : reported[chat ? "content" : "text_offset"]) {
        logprobs.push_back(each);
      }
      finish = choice["finish_reason"];
    }
    const auto& choice = whole["choices"][0];
    CHECK(text == answer_text());
    CHECK(text == (chat ? choice["message"]["content"] : choice["text"]).get<std::string>());
    CHECK(logprobs == choice["logprobs"][chat ? "content" : "text_offset"]);
    CHECK(finish == choice["finish_reason"]);
  }
}

TEST_CASE("an event's id is the index of the last token that it covers") {
  api_request request{.kind = api_kind::chat, .stream = true};
  const auto play = [](const generation_request&, const generation_sink& sink, const auto&) {
    sink(generation_accepted{});
    sink(generation_delta{.index = 0, .text = "a", .tokens = {1}, .logprobs = {}});
    sink(generation_delta{.index = 1, .text = "bcd", .tokens = {1, 2, 3}, .logprobs = {}});
    sink(generation_finished{});
  };
  const auto events = converse(request, play).events;
  CHECK(events.find("id: 0\ndata: ") != std::string::npos);
  CHECK(events.find("id: 3\ndata: ") != std::string::npos);
  CHECK(events.starts_with("data: "));
}

TEST_CASE("a failure before the stream begins is a status, and after it an error event without [DONE]") {
  api_request request{.kind = api_kind::chat, .stream = true};
  const auto early = converse(request, play_failure(errc::exhausted));
  CHECK(early.whole.value().status == 429);
  CHECK_FALSE(early.begin_stream);
  const auto late = converse(request, [](const auto&, const generation_sink& sink, const auto&) {
    sink(generation_accepted{});
    sink(generation_failed{{errc::unavailable, "Gone."}});
    sink(one_token(0, "never seen"));
  });
  CHECK(late.done);
  CHECK_FALSE(late.whole.has_value());
  const auto events = payloads(late.events);
  CHECK(json::parse(events.back())["error"]["message"] == "Gone.");
  CHECK(late.events.find("never seen") == std::string::npos);
}

TEST_CASE("a request that the server gives up is 503, not a finished answer") {
  const auto output = converse({.kind = api_kind::chat}, [](const auto&, const generation_sink& sink, const auto&) {
    sink(generation_accepted{});
    sink(generation_finished{.reason = finish_reason::cancelled, .completion_tokens = 0});
  });
  CHECK(output.whole.value().status == 503);
}

TEST_CASE("an answer longer than the server collects is refused and cancelled") {
  const auto output = converse({.kind = api_kind::chat}, play_answer, 10);
  CHECK(output.whole.value().status == 500);
  CHECK(output.cancel);
}

TEST_CASE("replies say their length, and a HEAD reply has no body") {
  const reply answer{.status = 405, .body = "abc", .headers = {{"Allow", "GET"}}};
  const auto bytes = serialize(answer, true);
  CHECK(bytes ==
        "HTTP/1.1 405 Method Not Allowed\r\nContent-Type: application/json\r\nContent-Length: 3\r\nAllow: GET\r\n"
        "Connection: keep-alive\r\n\r\nabc");
  CHECK(serialize(answer, false, true).ends_with("Connection: close\r\n\r\n"));
  CHECK(chunk("0123456789abcdef!") == "11\r\n0123456789abcdef!\r\n");
}

TEST_CASE("keys compare equal only when they are") {
  CHECK(equal_in_constant_time("secret", "secret"));
  CHECK(equal_in_constant_time("", ""));
  for (const auto* wrong : {"", "s", "secreT", "secret ", "Secret", "secretsecret"}) {
    CHECK_FALSE(equal_in_constant_time(wrong, "secret"));
    CHECK_FALSE(equal_in_constant_time("secret", wrong));
  }
}

TEST_CASE("JSON media types are recognised with parameters and in any case") {
  for (const auto* yes :
       {"application/json", "Application/JSON", "application/json; charset=utf-8", " application/json ;x"}) {
    CHECK(is_json(yes));
  }
  for (const auto* no :
       {"", "text/plain", "application/jsonl", "application/x-www-form-urlencoded", ";application/json"}) {
    CHECK_FALSE(is_json(no));
  }
}

TEST_CASE("percent escapes are decoded, and broken ones stay") {
  CHECK(percent_decoded("a%2Fb%2f") == "a/b/");
  CHECK(percent_decoded("%") == "%");
  CHECK(percent_decoded("%4") == "%4");
  CHECK(percent_decoded("%zz%-1%41") == "%zz%-1A");
}

}  // namespace troupe::http
