#include "apps/http/server.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <random>
#include <thread>
#include <vector>

#include "tests/apps/http/fake_backend.hpp"
#include "tests/apps/http/raw_client.hpp"

namespace troupe::http {

namespace {

using nlohmann::json;

constexpr const char* chat_path = "/v1/chat/completions";
constexpr const char* chat_body = R"({"messages":[{"role":"user","content":"Hi"}]})";
constexpr const char* chat_stream_body = R"({"messages":[{"role":"user","content":"Hi"}],"stream":true})";

std::unique_ptr<http_server> started(fake_backend& backend, http_options options = {}) {
  auto server = http_server::start(std::move(options), backend);
  REQUIRE(server);
  return std::move(server).value();
}

std::string code_of(const raw_response& response) { return json::parse(response.body)["error"]["code"]; }

// The text of a chat stream, whose last event must be [DONE].
std::string joined(const std::string& events) {
  std::string text;
  for (size_t at = events.find("data: {"); at != std::string::npos; at = events.find("data: {", at + 1)) {
    const auto event = json::parse(events.substr(at + 6, events.find("\n\n", at) - at - 6));
    for (const auto& choice : event["choices"]) {
      text += choice["delta"].value("content", "");
    }
  }
  CHECK(events.ends_with("data: [DONE]\n\n"));
  return text;
}

}  // namespace

TEST_CASE("a chat is answered whole") {
  fake_backend backend(play_answer);
  const auto server = started(backend, {.system_fingerprint = "fp_test"});
  raw_client client(server->port());
  const auto response = client.ask(post(chat_path, R"({"messages":[{"role":"user","content":"Hi"}],"seed":11})"));
  REQUIRE(response.status == 200);
  CHECK(response.headers.at("content-type") == "application/json");
  const auto document = json::parse(response.body);
  CHECK(document["object"] == "chat.completion");
  CHECK(document["id"].get<std::string>().starts_with("chatcmpl-"));
  CHECK(document["model"] == "troupe-tiny");
  CHECK(document["system_fingerprint"] == "fp_test");
  CHECK(document["seed"] == 11);
  CHECK(document["created"] > 1700000000);
  CHECK(document["choices"][0]["message"] ==
        json({{"role", "assistant"}, {"content", answer_text()}, {"refusal", nullptr}}));
  CHECK(document["choices"][0]["finish_reason"] == "stop");
  CHECK(document["usage"] == json({{"prompt_tokens", 5}, {"completion_tokens", 7}, {"total_tokens", 12}}));
  CHECK(backend.cancel_count() == 0);
}

TEST_CASE("a chat is streamed in chunks that join to the same answer") {
  for (const bool inline_events : {false, true}) {
    fake_backend backend(play_answer);
    backend.inline_events = inline_events;
    const auto server = started(backend);
    raw_client client(server->port());
    const auto response = client.ask(
        post(chat_path,
             R"({"messages":[{"role":"user","content":"Hi"}],"stream":true,"stream_options":{"include_usage":true}})"));
    CHECK(response.status == 200);
    CHECK(response.complete);
    CHECK(response.headers.at("content-type") == "text/event-stream; charset=utf-8");
    CHECK(joined(response.body) == answer_text());
    CHECK(response.body.find(R"("usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12})") !=
          std::string::npos);
    // The connection goes on.
    CHECK(client.ask(post(chat_path, chat_body)).status == 200);
    CHECK(backend.cancel_count() == 0);
  }
}

TEST_CASE("a completion is answered whole and streamed") {
  fake_backend backend(play_answer);
  const auto server = started(backend);
  raw_client client(server->port());
  const auto whole = client.ask(post("/v1/completions", R"({"prompt":"a","max_tokens":2})"));
  CHECK(json::parse(whole.body)["choices"][0]["text"] == "The \"quick\"");
  CHECK(json::parse(whole.body)["choices"][0]["finish_reason"] == "length");
  const auto streamed = client.ask(post("/v1/completions", R"({"prompt":"a","stream":true})"));
  CHECK(streamed.body.find(R"("text":"The")") != std::string::npos);
  CHECK(streamed.body.ends_with("data: [DONE]\n\n"));
}

TEST_CASE("an HTTP/1.0 client gets a stream that ends with its connection") {
  fake_backend backend(play_answer);
  const auto server = started(backend);
  raw_client client(server->port());
  auto request = post(chat_path, chat_stream_body);
  request.replace(request.find("HTTP/1.1"), 8, "HTTP/1.0");
  const auto response = client.ask(request);
  CHECK(response.complete);
  CHECK_FALSE(response.headers.contains("transfer-encoding"));
  CHECK(joined(response.body) == answer_text());
}

TEST_CASE("the documents about the server are served") {
  fake_backend backend(play_answer);
  const auto server = started(backend);
  raw_client client(server->port());
  CHECK(json::parse(client.ask(get("/v1/models")).body)["data"][0]["id"] == "troupe-tiny");
  CHECK(json::parse(client.ask(get("/v1/models/troupe-tiny")).body)["created"] == 1700000000);
  CHECK(json::parse(client.ask(get("/v1/models/troupe%2Dtiny?x=1")).body)["owned_by"] == "troupe");
  CHECK(json::parse(client.ask(get("/cluster")).body)["nodes"] == 1);
  const auto metrics = client.ask(get("/metrics"));
  CHECK(metrics.body == "troupe_requests_total 7\n");
  CHECK(metrics.headers.at("content-type") == "text/plain; version=0.0.4; charset=utf-8");
  CHECK(client.ask(get("/health")).status == 200);
  backend.is_healthy = false;
  CHECK(client.ask(get("/health")).status == 503);
}

TEST_CASE("HEAD is answered like GET, without the body") {
  fake_backend backend(play_answer);
  const auto server = started(backend);
  raw_client client(server->port());
  client.send("HEAD /health HTTP/1.1\r\nHost: test\r\n\r\n");
  const auto response = client.read_response(/*head_only=*/true);
  CHECK(response.status == 200);
  CHECK(response.headers.at("content-length") == "15");
  CHECK(client.ask(get("/health")).status == 200);
}

TEST_CASE("unknown paths and models are 404, wrong methods 405 with Allow") {
  fake_backend backend(play_answer);
  const auto server = started(backend);
  raw_client client(server->port());
  CHECK(code_of(client.ask(get("/v2/models"))) == "unknown_url");
  const auto model = client.ask(get("/v1/models/gpt-4"));
  CHECK(model.status == 404);
  CHECK(code_of(model) == "model_not_found");
  const auto wrong_get = client.ask(get(chat_path));
  CHECK(wrong_get.status == 405);
  CHECK(wrong_get.headers.at("allow") == "POST");
  const auto wrong_post = client.ask(post("/v1/models", "{}"));
  CHECK(wrong_post.status == 405);
  CHECK(wrong_post.headers.at("allow") == "GET, HEAD");
}

TEST_CASE("what the backend refuses has its status, streamed or not") {
  const std::vector<std::pair<errc, int>> expected = {{errc::not_found, 404},
                                                      {errc::invalid_argument, 400},
                                                      {errc::exhausted, 429},
                                                      {errc::unavailable, 503},
                                                      {errc::internal, 500}};
  for (const auto& [code, status] : expected) {
    fake_backend backend(play_failure(code));
    const auto server = started(backend);
    raw_client client(server->port());
    for (const auto* body : {chat_body, chat_stream_body}) {
      const auto response = client.ask(post(chat_path, body));
      CHECK(response.status == status);
      CHECK(response.headers.contains("retry-after") == (status == 429 || status == 503));
      CHECK(json::parse(response.body)["error"]["message"] == "A sentence.");
    }
  }
}

TEST_CASE("a body that is malformed, of another type or compressed is refused, and the connection goes on") {
  fake_backend backend(play_answer);
  const auto server = started(backend);
  raw_client client(server->port());
  CHECK(client.ask(post(chat_path, "{")).status == 400);
  auto form = post(chat_path, chat_body);
  form.replace(form.find("application/json"), 16, "text/plain");
  CHECK(client.ask(form).status == 415);
  CHECK(client.ask(post(chat_path, chat_body, "Content-Encoding: gzip\r\n")).status == 415);
  CHECK(client.ask(post(chat_path, chat_body)).status == 200);
  CHECK(backend.submit_count() == 1);
}

TEST_CASE("a body beyond the limit is 413 and the connection closes") {
  fake_backend backend(play_answer);
  const auto server = started(backend, {.body_bytes_max = 1000});
  {
    raw_client client(server->port());
    const auto response = client.ask(post(chat_path, std::string(1001, ' ')));
    CHECK(response.status == 413);
    CHECK(response.headers.at("connection") == "close");
    CHECK(client.read_to_end());
  }
  raw_client chunked(server->port());
  chunked.send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n2000\r\n" +
               std::string(0x2000, ' '));
  CHECK(chunked.read_response().status == 413);
}

TEST_CASE("a chunked request body is understood") {
  fake_backend backend(play_answer);
  const auto server = started(backend);
  raw_client client(server->port());
  const auto response = client.ask(
      "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
      "5\r\n{\"pro\r\n9\r\nmpt\":\"a\"}\r\n0\r\n\r\n");
  CHECK(response.status == 200);
}

TEST_CASE("a client that waits for 100 Continue gets it") {
  fake_backend backend(play_answer);
  const auto server = started(backend);
  raw_client client(server->port());
  const auto request = post(chat_path, chat_body, "Expect: 100-continue\r\n");
  const auto body_at = request.find("\r\n\r\n") + 4;
  client.send(request.substr(0, body_at));
  CHECK(client.read_response(/*head_only=*/true).status == 100);
  CHECK(client.ask(request.substr(body_at)).status == 200);
}

TEST_CASE("bytes that are not HTTP are 400, a long header is 431, and the server lives on") {
  fake_backend backend(play_answer);
  const auto server = started(backend, {.header_bytes_max = 2000});
  for (const auto* bytes :
       {"\r\n\r\nnonsense\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/3.0\r\n\r\n", "\x16\x03\x01\x02\x00\x01\xFC",
        "GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n", "GET / HTTP/1.1\r\n: x\r\n\r\n"}) {
    raw_client client(server->port());
    CHECK(client.ask(bytes).status == 400);
    CHECK(client.read_to_end());
  }
  raw_client client(server->port());
  CHECK(client.ask(get("/health", "X-Long: " + std::string(3000, 'x') + "\r\n")).status == 431);
  raw_client healthy(server->port());
  CHECK(healthy.ask(get("/health")).status == 200);
}

TEST_CASE("damaged requests do no harm") {
  fake_backend backend(play_answer);
  const auto server = started(backend);
  std::mt19937 random(1);  // NOLINT: the same damage every time
  const auto whole = post(chat_path, chat_stream_body, "Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n") +
                     post(chat_path, chat_body) + get("/v1/models/%41");
  for (int i = 0; i < 300; ++i) {
    auto bytes = whole;
    for (auto edits = 1 + random() % 4; edits > 0; --edits) {
      const auto at = random() % bytes.size();
      switch (random() % 3) {
        case 0: bytes.erase(at, 1 + random() % 9); break;
        case 1: bytes.insert(at, 1, static_cast<char>(random() % 256)); break;
        default: bytes[at] = static_cast<char>(random() % 256);
      }
    }
    raw_client client(server->port());
    client.send(bytes);
    if (i % 3 == 0) client.read_until("\r\n\r\n");
  }
  raw_client healthy(server->port());
  CHECK(healthy.ask(get("/health")).status == 200);
}

TEST_CASE("the API key is asked for everywhere but at /health") {
  fake_backend backend(play_answer);
  const auto server = started(backend, {.api_key = "sk-secret"});
  raw_client client(server->port());
  for (const auto* headers :
       {"", "Authorization: Bearer sk-other\r\n", "Authorization: Bearer sk-secret2\r\n",
        "Authorization: Basic sk-secret\r\n", "Authorization: Bearer\r\n", "Authorization: sk-secret\r\n"}) {
    for (const auto* path : {"/v1/models", "/metrics", "/cluster", "/nowhere"}) {
      const auto response = client.ask(get(path, headers));
      CHECK(response.status == 401);
      CHECK(code_of(response) == "invalid_api_key");
    }
    CHECK(client.ask(post(chat_path, chat_body, headers)).status == 401);
  }
  CHECK(client.ask(get("/health")).status == 200);
  CHECK(client.ask(get("/v1/models", "Authorization: Bearer sk-secret\r\n")).status == 200);
  CHECK(client.ask(post(chat_path, chat_body, "authorization: bearer sk-secret\r\n")).status == 200);
  CHECK(backend.submit_count() == 1);
}

TEST_CASE("requests that a client sends ahead are answered in order") {
  fake_backend backend(play_answer);
  const auto server = started(backend);
  raw_client client(server->port());
  client.send(post(chat_path, chat_stream_body) + get("/health") + post(chat_path, chat_body) + get("/v1/models"));
  CHECK(joined(client.read_response().body) == answer_text());
  CHECK(client.read_response().body == R"({"status":"ok"})");
  CHECK(json::parse(client.read_response().body)["object"] == "chat.completion");
  CHECK(json::parse(client.read_response().body)["object"] == "list");
}

TEST_CASE("a connection is closed after its response when the client asks so") {
  fake_backend backend(play_answer);
  const auto server = started(backend);
  for (const auto* body : {chat_body, chat_stream_body}) {
    raw_client client(server->port());
    CHECK(client.ask(post(chat_path, body, "Connection: close\r\n")).complete);
    CHECK(client.read_to_end());
  }
}

TEST_CASE("a client that leaves in the middle of a stream has its request cancelled") {
  fake_backend backend(play_forever);
  const auto server = started(backend);
  raw_client client(server->port());
  client.send(post(chat_path, chat_stream_body));
  REQUIRE(client.read_until("id: 5\n"));
  client.close();
  CHECK(backend.wait_for_cancels(1));
}

TEST_CASE("a client that leaves while it waits has its request cancelled, though nothing is written") {
  for (const auto* body : {chat_body, chat_stream_body}) {
    fake_backend backend(play_silence);
    const auto server = started(backend);
    raw_client client(server->port());
    client.send(post(chat_path, body));
    while (backend.submit_count() == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    client.close();
    CHECK(backend.wait_for_cancels(1));
  }
}

TEST_CASE("a client that sends far too much ahead does not fill the server, and is still served") {
  fake_backend backend([](const generation_request&, const generation_sink& sink, const auto& cancelled) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    play_answer({}, sink, cancelled);
  });
  const auto server = started(backend);
  raw_client client(server->port());
  std::string ahead;
  for (int i = 0; i < 4000; ++i) {
    ahead += get("/health");
  }
  std::thread sender([&] { client.send(post(chat_path, chat_body) + ahead); });
  CHECK(client.read_response().status == 200);
  for (int i = 0; i < 4000; ++i) {
    REQUIRE(client.read_response().status == 200);
  }
  sender.join();
}

TEST_CASE("a reader too slow for its stream is cancelled and cut") {
  fake_backend backend([](const generation_request&, const generation_sink& sink, const auto& cancelled) {
    sink(generation_accepted{});
    const std::string text(10'000, 'x');
    for (uint32_t i = 0; !cancelled(); ++i) {
      sink(one_token(i, text));
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });
  const auto server = started(backend, {.output_bytes_max = 1024 * 1024});
  raw_client client(server->port(), /*receive_bytes=*/4096);
  client.send(post(chat_path, chat_stream_body));
  REQUIRE(backend.wait_for_cancels(1));
  raw_client healthy(server->port());
  CHECK(healthy.ask(get("/health")).status == 200);
  CHECK_FALSE(client.read_response().complete);
}

TEST_CASE("a client that takes nothing is cut at the write deadline") {
  fake_backend backend([](const generation_request&, const generation_sink& sink, const auto& cancelled) {
    sink(generation_accepted{});
    sink(one_token(0, std::string(12'000'000, 'x')));
    while (!cancelled()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  const auto server =
      started(backend, {.output_bytes_max = 64 * 1024 * 1024, .write_timeout = std::chrono::milliseconds(200)});
  raw_client client(server->port(), /*receive_bytes=*/4096);
  client.send(post(chat_path, chat_stream_body));
  CHECK(backend.wait_for_cancels(1));
}

TEST_CASE("a client that is slow to send its request, or sends none, is let go") {
  fake_backend backend(play_answer);
  const auto server = started(
      backend, {.idle_timeout = std::chrono::milliseconds(100), .request_timeout = std::chrono::milliseconds(100)});
  raw_client silent(server->port());
  CHECK(silent.read_to_end());
  raw_client slow(server->port());
  slow.send("POST /v1/completions HTTP/1.1\r\n");
  CHECK(slow.read_to_end());
  raw_client slow_body(server->port());
  slow_body.send(post(chat_path, chat_body).substr(0, 150));
  CHECK(slow_body.read_to_end());
}

TEST_CASE("an answer takes longer than the idle deadline without harm") {
  fake_backend backend([](const generation_request& request, const generation_sink& sink, const auto& cancelled) {
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    play_answer(request, sink, cancelled);
  });
  const auto server = started(backend, {.idle_timeout = std::chrono::milliseconds(100),
                                        .request_timeout = std::chrono::milliseconds(100),
                                        .write_timeout = std::chrono::milliseconds(100)});
  raw_client client(server->port());
  CHECK(client.ask(post(chat_path, chat_body)).status == 200);
}

TEST_CASE("fifty connections are served at once, each with its own answer") {
  fake_backend backend([](const generation_request& request, const generation_sink& sink, const auto&) {
    sink(generation_accepted{.request = *request.seed, .prompt_tokens = 1, .seed = *request.seed});
    for (uint32_t i = 0; i < 20; ++i) {
      sink(one_token(i, std::to_string(*request.seed) + ","));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    sink(generation_finished{.reason = finish_reason::stop, .completion_tokens = 20});
  });
  for (const size_t threads : {1, 3}) {
    const auto server = started(backend, {.threads = threads});
    std::vector<std::thread> clients;
    std::atomic<int> right{0};
    for (int i = 0; i < 50; ++i) {
      clients.emplace_back([&, i] {
        raw_client client(server->port());
        const auto seed = std::to_string(i);
        const auto response = client.ask(
            post(chat_path, R"({"messages":[{"role":"user","content":"Hi"}],"stream":true,"seed":)" + seed + "}"));
        std::string expected;
        for (int piece = 0; piece < 20; ++piece) {
          expected += seed + ",";
        }
        right += response.complete && joined(response.body) == expected ? 1 : 0;
      });
    }
    for (auto& client : clients) {
      client.join();
    }
    CHECK(right == 50);
  }
}

TEST_CASE("requests beyond the limit are 429, and a place that frees is taken") {
  fake_backend backend(play_silence);
  const auto server = started(backend, {.requests_max = 1});
  raw_client first(server->port());
  first.send(post(chat_path, chat_stream_body));
  REQUIRE(first.read_until("assistant"));
  raw_client second(server->port());
  const auto refused = second.ask(post(chat_path, chat_body));
  CHECK(refused.status == 429);
  CHECK(refused.headers.contains("retry-after"));
  first.close();
  REQUIRE(backend.wait_for_cancels(1));
  second.send(post(chat_path, chat_stream_body));
  CHECK(second.read_until("assistant"));
}

TEST_CASE("connections beyond the limit are told 503, and a place that frees is taken") {
  fake_backend backend(play_answer);
  const auto server = started(backend, {.connections_max = 1});
  raw_client first(server->port());
  REQUIRE(first.ask(get("/health")).status == 200);
  {
    raw_client second(server->port());
    const auto refused = second.ask(get("/health"));
    CHECK(refused.status == 503);
    CHECK(second.read_to_end());
  }
  first.close();
  int status = 0;
  for (int i = 0; i < 2000 && status != 200; ++i) {
    raw_client third(server->port());
    status = third.ask(get("/health")).status;
  }
  CHECK(status == 200);
}

TEST_CASE("stopping while streams run cancels them, cuts their connections and ends") {
  fake_backend backend(play_forever);
  auto server = started(backend);
  std::vector<std::unique_ptr<raw_client>> clients;
  for (int i = 0; i < 5; ++i) {
    clients.push_back(std::make_unique<raw_client>(server->port()));
    clients.back()->send(post(chat_path, chat_stream_body));
    REQUIRE(clients.back()->read_until("id: 1\n"));
  }
  raw_client idle(server->port());
  REQUIRE(idle.ask(get("/health")).status == 200);
  const auto port = server->port();
  server->stop();
  CHECK(backend.cancel_count() == 5);
  for (auto& client : clients) {
    CHECK_FALSE(client->read_response().complete);
  }
  CHECK(idle.read_to_end());
  server->stop();
  server.reset();
  CHECK_FALSE(raw_client(port).connected());
}

TEST_CASE("events that come after the client has gone and the server has stopped touch nothing") {
  std::atomic<bool> go{false};
  fake_backend backend([&](const generation_request&, const generation_sink& sink, const auto&) {
    sink(generation_accepted{});
    while (!go) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    for (uint32_t i = 0; i < 100; ++i) {
      sink(one_token(i, "late"));
    }
    sink(generation_finished{});
  });
  {
    auto server = started(backend);
    raw_client client(server->port());
    client.send(post(chat_path, chat_stream_body));
    REQUIRE(client.read_until("assistant"));
  }
  go = true;
}

TEST_CASE("options that make no sense and addresses that are taken are refused") {
  fake_backend backend(play_answer);
  const auto refusal = [&](http_options options) {
    return http_server::start(std::move(options), backend).failure().code;
  };
  CHECK(refusal({.address = "localhost"}) == errc::invalid_argument);
  CHECK(refusal({.address = ""}) == errc::invalid_argument);
  CHECK(refusal({.api_key = "with space"}) == errc::invalid_argument);
  CHECK(refusal({.threads = 0}) == errc::invalid_argument);
  CHECK(refusal({.connections_max = 0}) == errc::invalid_argument);
  CHECK(refusal({.header_bytes_max = 1}) == errc::invalid_argument);
  CHECK(refusal({.idle_timeout = std::chrono::milliseconds(0)}) == errc::invalid_argument);
  CHECK(refusal({.address = "203.0.113.1"}) == errc::unavailable);
  const auto server = started(backend);
  CHECK(refusal({.port = server->port()}) == errc::unavailable);
}

}  // namespace troupe::http
