#include "apps/http/openai_response.hpp"

#include <algorithm>
#include <utility>

#include "apps/http/strict_json.hpp"

namespace troupe::http {

namespace {

using json = nlohmann::ordered_json;

const char* to_text(finish_reason reason) {
  TROUPE_CHECK(reason != finish_reason::cancelled, "a cancelled request has no OpenAI finish_reason");
  return reason == finish_reason::stop ? "stop" : "length";
}

// OpenAI's stand-in for "as good as never"; JSON has no infinity.
double finite_logprob(float logprob) {
  constexpr double lowest = -9999.0;
  return logprob > lowest ? double{logprob} : lowest;
}

json chat_logprobs(const std::vector<token_logprob>& tokens) {
  json content = json::array();
  for (const auto& token : tokens) {
    json bytes = json::array();
    for (const char byte : token.text) {
      bytes.push_back(static_cast<unsigned char>(byte));
    }
    content.push_back({{"token", token.text},
                       {"logprob", finite_logprob(token.logprob)},
                       {"bytes", std::move(bytes)},
                       {"top_logprobs", json::array()}});
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

json completion_logprobs(const std::vector<token_logprob>& tokens, uint64_t text_offset) {
  json texts = json::array();
  json values = json::array();
  json offsets = json::array();
  for (const auto& token : tokens) {
    texts.push_back(token.text);
    values.push_back(finite_logprob(token.logprob));
    offsets.push_back(text_offset);
    text_offset += character_count(token.text);
  }
  return {{"tokens", std::move(texts)},
          {"token_logprobs", std::move(values)},
          {"top_logprobs", nullptr},
          {"text_offset", std::move(offsets)}};
}

json to_json(token_usage usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", uint64_t{usage.prompt_tokens} + usage.completion_tokens}};
}

json envelope(const response_head& head, const char* object) {
  return {{"id", head.id},
          {"object", object},
          {"created", head.created_s},
          {"model", head.model},
          {"system_fingerprint", head.system_fingerprint},
          {"seed", head.seed}};
}

json chunk_envelope(const response_head& head) {
  return envelope(head, head.kind == api_kind::chat ? "chat.completion.chunk" : "text_completion");
}

// `text` null: a chunk without text. `finish` null: the answer goes on.
std::string render_chunk(const response_head& head, json delta_or_text, json logprobs, json finish) {
  auto document = chunk_envelope(head);
  const char* key = head.kind == api_kind::chat ? "delta" : "text";
  document["choices"] = json::array({{{"index", 0},
                                      {key, std::move(delta_or_text)},
                                      {"logprobs", std::move(logprobs)},
                                      {"finish_reason", std::move(finish)}}});
  if (head.include_usage) {
    document["usage"] = nullptr;
  }
  return dump(document);
}

json logprobs_or_null(const response_head& head, const std::vector<token_logprob>& tokens, uint64_t text_offset) {
  if (!head.logprobs) return nullptr;
  return head.kind == api_kind::chat ? chat_logprobs(tokens) : completion_logprobs(tokens, text_offset);
}

json model_json(std::string_view model, uint64_t created_s) {
  return {{"id", model}, {"object", "model"}, {"created", created_s}, {"owned_by", "troupe"}};
}

}  // namespace

std::vector<token_logprob> token_logprobs(const generation_delta& delta) {
  const size_t count = std::min(delta.tokens.size(), delta.logprobs.size());
  std::vector<token_logprob> tokens(count);
  for (size_t i = 0; i < count; ++i) {
    tokens[i].logprob = delta.logprobs[i];
  }
  if (count > 0) {
    tokens.back().text = delta.text;
  }
  return tokens;
}

std::string render_role_chunk(const response_head& head) {
  return render_chunk(head, {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr);
}

std::string render_delta_chunk(const response_head& head, const generation_delta& delta, uint64_t text_offset) {
  json payload = delta.text;
  if (head.kind == api_kind::chat) {
    payload = json{{"content", delta.text}};
  }
  return render_chunk(head, std::move(payload), logprobs_or_null(head, token_logprobs(delta), text_offset), nullptr);
}

std::string render_finish_chunk(const response_head& head, finish_reason reason) {
  return render_chunk(head, head.kind == api_kind::chat ? json::object() : json(""), nullptr, to_text(reason));
}

std::string render_usage_chunk(const response_head& head, token_usage usage) {
  auto document = chunk_envelope(head);
  document["choices"] = json::array();
  document["usage"] = to_json(usage);
  return dump(document);
}

std::string render_whole(const response_head& head, std::string_view text, const std::vector<token_logprob>& tokens,
                         finish_reason reason, token_usage usage) {
  const bool chat = head.kind == api_kind::chat;
  auto document = envelope(head, chat ? "chat.completion" : "text_completion");
  json choice = {{"index", 0}};
  if (chat) {
    choice["message"] = {{"role", "assistant"}, {"content", text}, {"refusal", nullptr}};
  } else {
    choice["text"] = text;
  }
  choice["logprobs"] = logprobs_or_null(head, tokens, 0);
  choice["finish_reason"] = to_text(reason);
  document["choices"] = json::array({std::move(choice)});
  document["usage"] = to_json(usage);
  return dump(document);
}

std::string render_model(std::string_view model, uint64_t created_s) { return dump(model_json(model, created_s)); }

std::string render_model_list(std::string_view model, uint64_t created_s) {
  return dump({{"object", "list"}, {"data", json::array({model_json(model, created_s)})}});
}

std::string sse_event(std::string_view data, std::string_view id) {
  std::string event;
  event.reserve(data.size() + id.size() + 16);
  if (!id.empty()) {
    event.append("id: ").append(id).append("\n");
  }
  return event.append("data: ").append(data).append("\n\n");
}

uint64_t character_count(std::string_view text) {
  return static_cast<uint64_t>(std::count_if(text.begin(), text.end(), [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U;  // every byte but a continuation
  }));
}

}  // namespace troupe::http
