#include "apps/http/openai_request.hpp"

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

namespace troupe::http {

namespace {

api_request chat(const std::string& fields) {
  const auto parsed = parse_chat_request(R"({"messages":[{"role":"user","content":"Hi"}])" +
                                         (fields.empty() ? "" : "," + fields) + "}");
  INFO(fields);
  REQUIRE(std::holds_alternative<api_request>(parsed));
  return std::get<api_request>(parsed);
}

api_request completion(const std::string& body) {
  const auto parsed = parse_completion_request(body);
  INFO(body);
  REQUIRE(std::holds_alternative<api_request>(parsed));
  return std::get<api_request>(parsed);
}

api_error refused(const parsed_request& parsed) {
  REQUIRE(std::holds_alternative<api_error>(parsed));
  CHECK(std::get<api_error>(parsed).status == 400);
  return std::get<api_error>(parsed);
}

api_error chat_refused(const std::string& fields) {
  INFO(fields);
  return refused(parse_chat_request(R"({"messages":[{"role":"user","content":"Hi"}],)" + fields + "}"));
}

bool mentions(const api_error& refusal, const std::string& text) {
  INFO(refusal.message);
  return refusal.message.find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("a chat request with nothing but messages gets the documented defaults") {
  const auto request = chat("");
  CHECK(request.kind == api_kind::chat);
  CHECK(request.generation.model.empty());
  REQUIRE(request.generation.messages.size() == 1);
  CHECK(request.generation.messages[0].role == "user");
  CHECK(request.generation.messages[0].content == "Hi");
  CHECK_FALSE(request.generation.prompt.has_value());
  CHECK_FALSE(request.generation.max_tokens.has_value());
  CHECK(request.generation.temperature == 1.0F);
  CHECK(request.generation.top_p == 1.0F);
  CHECK_FALSE(request.generation.seed.has_value());
  CHECK_FALSE(request.generation.ignore_eos);
  CHECK_FALSE(request.stream);
  CHECK_FALSE(request.include_usage);
  CHECK_FALSE(request.logprobs);
}

TEST_CASE("every served parameter of a chat request arrives") {
  const auto request = chat(R"("model":"m","max_tokens":12,"temperature":0.5,"top_p":0.25,"seed":18446744073709551615,
    "stop":["a","b"],"stream":true,"stream_options":{"include_usage":true},"logprobs":true,"top_logprobs":0,
    "n":1,"user":"me","ignore_eos":true)");
  CHECK(request.generation.model == "m");
  CHECK(request.generation.max_tokens == 12);
  CHECK(request.generation.temperature == 0.5F);
  CHECK(request.generation.top_p == 0.25F);
  CHECK(request.generation.seed == 18446744073709551615ULL);
  CHECK(request.generation.stop == std::vector<std::string>{"a", "b"});
  CHECK(request.stream);
  CHECK(request.include_usage);
  CHECK(request.logprobs);
  CHECK(request.generation.ignore_eos);
}

TEST_CASE("null stands for an absent parameter") {
  const auto request = chat(
      R"("max_tokens":null,"temperature":null,"stop":null,"seed":null,"n":null,"stream_options":null,"tools":null)");
  CHECK_FALSE(request.generation.max_tokens.has_value());
  CHECK(request.generation.temperature == 1.0F);
}

TEST_CASE("the newer name of max_tokens counts, and a contradiction of the two is refused") {
  CHECK(chat(R"("max_completion_tokens":3)").generation.max_tokens == 3);
  CHECK(chat(R"("max_completion_tokens":3,"max_tokens":3)").generation.max_tokens == 3);
  CHECK(chat_refused(R"("max_completion_tokens":3,"max_tokens":4)").param == "max_tokens");
}

TEST_CASE("content may be an array of text parts, which are joined") {
  const auto parsed = parse_chat_request(
      R"({"messages":[{"role":"developer","content":[{"type":"text","text":"a "},{"type":"text","text":"b"}]}]})");
  REQUIRE(std::holds_alternative<api_request>(parsed));
  const auto& message = std::get<api_request>(parsed).generation.messages.at(0);
  CHECK(message.role == "system");
  CHECK(message.content == "a b");
}

TEST_CASE("messages that are not text from a known role are refused by their place") {
  for (const auto* messages :
       {R"([{"role":"user","content":"a"},{"role":"tool","content":"x"}])",
        R"([{"role":"user","content":"a"},{"content":"x"}])", R"([{"role":"user","content":"a"},{"role":"user"}])",
        R"([{"role":"user","content":"a"},{"role":"user","content":null}])",
        R"([{"role":"user","content":"a"},{"role":"user","content":[]}])", R"([{"role":"user","content":"a"},3])",
        R"([{"role":"user","content":"a"},{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])",
        R"([{"role":"user","content":"a"},{"role":"user","content":["x"]}])",
        R"([{"role":"user","content":"a"},{"role":7,"content":"x"}])"}) {
    INFO(messages);
    const auto refusal = refused(parse_chat_request(std::string(R"({"messages":)") + messages + "}"));
    CHECK(mentions(refusal, "messages[1]"));
  }
  for (const auto* body :
       {"{}", R"({"messages":[]})", R"({"messages":"hi"})", R"({"messages":null})", R"({"messages":{}})"}) {
    INFO(body);
    CHECK(refused(parse_chat_request(body)).param == "messages");
  }
}

TEST_CASE("a prompt is a string, one string in an array, or token ids") {
  CHECK(completion(R"({"prompt":"Hi"})").generation.prompt == "Hi");
  CHECK(completion(R"({"prompt":""})").generation.prompt == "");
  CHECK(completion(R"({"prompt":["Hi"]})").generation.prompt == "Hi");
  const auto ids = completion(R"({"prompt":[0,5,2147483647]})").generation;
  CHECK_FALSE(ids.prompt.has_value());
  CHECK(ids.prompt_ids == std::vector<int32_t>{0, 5, 2147483647});
  CHECK(completion(R"({"prompt":[[1,2]]})").generation.prompt_ids == std::vector<int32_t>{1, 2});
  for (const auto* body :
       {"{}", R"({"prompt":[]})", R"({"prompt":[[]]})", R"({"prompt":["a","b"]})", R"({"prompt":3})",
        R"({"prompt":[1,-2]})", R"({"prompt":[1,2147483648]})", R"({"prompt":[1,2.5]})", R"({"prompt":[1,"a"]})",
        R"({"prompt":[[1],[2]]})", R"({"prompt":{}})", R"({"prompt":[null]})"}) {
    INFO(body);
    CHECK(refused(parse_completion_request(body)).param == "prompt");
  }
}

TEST_CASE("completion logprobs are a count of 0 or 1") {
  CHECK(completion(R"({"prompt":"a","logprobs":0})").logprobs);
  CHECK(completion(R"({"prompt":"a","logprobs":1})").logprobs);
  CHECK_FALSE(completion(R"({"prompt":"a","logprobs":null})").logprobs);
  CHECK(refused(parse_completion_request(R"({"prompt":"a","logprobs":2})")).param == "logprobs");
  CHECK(refused(parse_completion_request(R"({"prompt":"a","logprobs":true})")).param == "logprobs");
}

TEST_CASE("a value of the wrong type or out of range is refused by name with a sentence") {
  const std::vector<std::pair<std::string, std::string>> wrong = {{"model", "3"},
                                                                  {"max_tokens", "0"},
                                                                  {"max_tokens", "-1"},
                                                                  {"max_tokens", "1.5"},
                                                                  {"max_tokens", "\"4\""},
                                                                  {"max_tokens", "4294967296"},
                                                                  {"temperature", "-0.1"},
                                                                  {"temperature", "2.1"},
                                                                  {"temperature", "\"1\""},
                                                                  {"top_p", "0"},
                                                                  {"top_p", "1.01"},
                                                                  {"seed", "-1"},
                                                                  {"seed", "1.5"},
                                                                  {"seed", "\"a\""},
                                                                  {"stop", "\"\""},
                                                                  {"stop", "[\"a\",\"\"]"},
                                                                  {"stop", "[1]"},
                                                                  {"stop", "{}"},
                                                                  {"stop", "[\"a\",\"b\",\"c\",\"d\",\"e\"]"},
                                                                  {"stream", "1"},
                                                                  {"stream", "\"true\""},
                                                                  {"n", "2"},
                                                                  {"n", "\"1\""},
                                                                  {"logprobs", "1"},
                                                                  {"top_logprobs", "3"},
                                                                  {"user", "3"},
                                                                  {"ignore_eos", "0"},
                                                                  {"stream_options", "{\"include_usage\":true}"},
                                                                  {"stream_options", "[]"}};
  for (const auto& [name, value] : wrong) {
    const auto refusal = chat_refused("\"" + name + "\":" + value);
    CHECK(refusal.param == name);
    CHECK(mentions(refusal, "'" + name + "'"));
    CHECK(refusal.type == "invalid_request_error");
    CHECK(refusal.message.back() == '.');
  }
}

TEST_CASE("stream options are checked like the body") {
  CHECK(chat_refused(R"("stream":true,"stream_options":{"include_usage":1})").param == "stream_options.include_usage");
  CHECK(chat_refused(R"("stream":true,"stream_options":{"include_usages":true})").param ==
        "stream_options.include_usages");
  CHECK_FALSE(chat(R"("stream":true,"stream_options":{"include_obfuscation":true})").include_usage);
}

TEST_CASE("a misspelt field is refused with the name it resembles") {
  const std::vector<std::pair<std::string, std::string>> misspelt = {
      {"max_token", "max_tokens"},   {"maxTokens", "max_tokens"},
      {"temprature", "temperature"}, {"top-p", "top_p"},
      {"Stream", "stream"},          {"seeds", "seed"},
      {"message", "messages"},       {"stop_", "stop"},
      {"ignore_eo", "ignore_eos"},   {"max_completion_token", "max_completion_tokens"}};
  for (const auto& [name, meant] : misspelt) {
    CHECK(mentions(chat_refused("\"" + name + "\":1"), "did you mean '" + meant + "'?"));
  }
}

TEST_CASE("unknown fields that resemble nothing are ignored") {
  chat(
      R"("metadata":{"a":1},"store":true,"service_tier":"auto","x":1,"":2,"parallel_tool_calls":true,"chat_template_kwargs":{})");
  chat("\"" + std::string(100'000, 'a') + "\":1");
}

TEST_CASE("fields that would change the tokens are accepted only where they change nothing") {
  chat(R"("frequency_penalty":0.0,"presence_penalty":0,"repetition_penalty":1.0,"top_k":-1,"min_p":0,"logit_bias":{},
    "tools":[],"tool_choice":"none","response_format":{"type":"text"},"best_of":1,"echo":false,"suffix":null)");
  for (const auto* field : {R"("top_k":5)", R"("frequency_penalty":0.5)", R"("tools":[{}])", R"("logit_bias":{"5":1})",
                            R"("response_format":{"type":"json_object"})", R"("echo":true)", R"("audio":{})"}) {
    const auto refusal = chat_refused(field);
    CHECK(refusal.code == "unsupported_parameter");
    CHECK(mentions(refusal, "is not supported; leave it out"));
  }
}

TEST_CASE("a body that is not a JSON object is refused") {
  for (const auto* body : {"", " ", "null", "[]", "3", "\"a\"", "{", "{\"a\"", "{}{}", "{\"a\":01}", "{\"a\":1e999}",
                           "{'a':1}", "{\"a\":NaN}", "\xEF\xBB\xBF{", "{\"a\":\"\\ud800\"}"}) {
    INFO(body);
    CHECK(refused(parse_chat_request(body)).code == "invalid_json");
  }
  CHECK(refused(parse_chat_request(std::string_view("\0", 1))).code == "invalid_json");
}

TEST_CASE("ill-formed UTF-8 is refused in a string and in a name") {
  CHECK(refused(parse_completion_request("{\"prompt\":\"a\xFF\"}")).code == "invalid_json");
  CHECK(refused(parse_completion_request("{\"prompt\":\"\xC0\xAF\"}")).code == "invalid_json");
  CHECK(refused(parse_completion_request("{\"prompt\":\"\xED\xA0\x80\"}")).code == "invalid_json");
  CHECK(refused(parse_completion_request("{\"\xFF\":1,\"prompt\":\"a\"}")).code == "invalid_json");
}

TEST_CASE("a name that appears twice in one object is refused, in two objects it is not") {
  CHECK(mentions(refused(parse_completion_request(R"({"prompt":"a","prompt":"b"})")), "appears twice"));
  CHECK(mentions(refused(parse_completion_request(R"({"prompt":"a","x":[{"y":1,"\u0079":2}]})")), "appears twice"));
  completion(R"({"prompt":"a","x":[{"y":1},{"y":1}]})");
}

TEST_CASE("nesting deeper than the limit is refused without a deep stack") {
  const std::string opening(500'000, '[');
  CHECK(mentions(refused(parse_completion_request("{\"x\":" + opening)), "nested deeper"));
  completion(R"({"prompt":"a","x":[[[[[[[[1]]]]]]]]})");
}

TEST_CASE("damaged bodies are refused or understood, and never anything else") {
  const std::string whole =
      R"({"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a\u00e9"}]}],"stop":["x"],"seed":3,)"
      R"("stream":true,"stream_options":{"include_usage":true},"temperature":0.5,"logprobs":true,"prompt":[1,2]})";
  std::mt19937 random(1);  // NOLINT: the same damage every time
  const std::string inserts = "{}[]\",:0-9.eEtfn\\u \xFF\x80";
  for (int i = 0; i < 20'000; ++i) {
    auto body = whole;
    for (auto edits = random() % 4; edits > 0; --edits) {
      const auto at = random() % body.size();
      switch (random() % 3) {
        case 0: body.erase(at, 1 + random() % 5); break;
        case 1: body.insert(at, 1, inserts[random() % inserts.size()]); break;
        default: body[at] = inserts[random() % inserts.size()];
      }
      body += body.empty() ? " " : "";
    }
    for (const auto& parsed : {parse_chat_request(body), parse_completion_request(body)}) {
      if (const auto* refusal = std::get_if<api_error>(&parsed)) {
        REQUIRE(refusal->status == 400);
        REQUIRE_FALSE(render(*refusal).empty());
      }
    }
  }
}

}  // namespace troupe::http
