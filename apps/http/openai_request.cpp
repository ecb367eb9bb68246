#include "apps/http/openai_request.hpp"

#include <array>
#include <limits>
#include <string>
#include <utility>

#include "apps/http/body_fields.hpp"
#include "apps/http/known_fields.hpp"
#include "apps/http/strict_json.hpp"

namespace troupe::http {

namespace {

using nlohmann::json;
using namespace std::string_view_literals;

constexpr std::array chat_names = {"model"sv,       "messages"sv,       "max_tokens"sv, "max_completion_tokens"sv,
                                   "temperature"sv, "top_p"sv,          "seed"sv,       "stop"sv,
                                   "stream"sv,      "stream_options"sv, "logprobs"sv,   "top_logprobs"sv,
                                   "n"sv,           "user"sv,           "ignore_eos"sv};
constexpr std::array completion_names = {"model"sv,       "prompt"sv,         "max_tokens"sv, "max_completion_tokens"sv,
                                         "temperature"sv, "top_p"sv,          "seed"sv,       "stop"sv,
                                         "stream"sv,      "stream_options"sv, "logprobs"sv,   "n"sv,
                                         "user"sv,        "ignore_eos"sv};
constexpr std::array stream_option_names = {"include_usage"sv, "include_obfuscation"sv};

constexpr size_t stop_count_max = 4;

void read_max_tokens(body_fields& fields, generation_request& out) {
  constexpr uint64_t tokens_max = std::numeric_limits<uint32_t>::max();
  const auto older = fields.integer("max_tokens", 1, tokens_max);
  const auto newer = fields.integer("max_completion_tokens", 1, tokens_max);
  if (older && newer && *older != *newer) {
    fields.fail("max_tokens", "and 'max_completion_tokens' say different things; send one of them.");
  }
  if (const auto chosen = newer ? newer : older) {
    out.max_tokens = static_cast<uint32_t>(*chosen);
  }
}

void read_sampling(body_fields& fields, generation_request& out) {
  out.temperature = static_cast<float>(fields.number("temperature", 1.0, 0.0, 2.0));
  out.top_p = static_cast<float>(fields.number("top_p", 1.0, 0.0, 1.0));
  if (!(out.top_p > 0.0F)) {
    fields.fail("top_p", "must be above 0; for greedy decoding set 'temperature' to 0.");
  }
  out.seed = fields.integer("seed", 0, std::numeric_limits<uint64_t>::max());
  out.ignore_eos = fields.boolean("ignore_eos", false);
  if (const auto* count = fields.find("n"); count != nullptr && *count != 1) {
    fields.fail("n", "must be 1, not " + describe(*count) + "; send several requests, with different seeds.");
  }
  fields.text("user");
}

void read_stop(body_fields& fields, generation_request& out) {
  const auto* stop = fields.find("stop");
  if (stop == nullptr) return;
  const auto list = stop->is_array() ? *stop : json::array({*stop});
  if (list.size() > stop_count_max) {
    fields.fail("stop", "may hold at most 4 strings, not " + std::to_string(list.size()) + ".");
    return;
  }
  for (const auto& entry : list) {
    if (!entry.is_string()) {
      fields.fail("stop", "must be a string or an array of strings; it holds " + describe(entry) + ".", "invalid_type");
      return;
    }
    if (entry.get_ref<const std::string&>().empty()) {
      fields.fail("stop", "holds an empty string, which would stop before the first token; leave it out.");
      return;
    }
    out.stop.push_back(entry.get<std::string>());
  }
}

void read_stream(body_fields& fields, api_request& out) {
  out.stream = fields.boolean("stream", false);
  const auto* options = fields.find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) {
    fields.fail("stream_options", "must be an object, not " + describe(*options) + ".", "invalid_type");
    return;
  }
  if (!out.stream) {
    fields.fail("stream_options", "is only allowed when 'stream' is true.");
  }
  body_fields inner(*options, "stream_options.");
  out.include_usage = inner.boolean("include_usage", false);
  if (inner.failure()) {
    fields.fail(*inner.failure());
  }
  if (auto refusal = check_unserved_fields(*options, stream_option_names, "stream_options.")) {
    fields.fail(std::move(*refusal));
  }
}

// A message's text: a string, or an array of {"type": "text", "text": ...}, joined as they are.
std::string read_content(body_fields& fields, const json& message, const std::string& path) {
  const auto content = message.find("content");
  if (content != message.end() && content->is_string()) return content->get<std::string>();
  if (content == message.end() || !content->is_array() || content->empty()) {
    fields.fail(bad_field(path + ".content",
                          "'" + path + ".content' must be a string or an array of text parts, not " +
                              (content == message.end()                  ? "missing"
                               : content->empty() && content->is_array() ? "empty"
                                                                         : describe(*content)) +
                              ".",
                          "invalid_type"));
    return {};
  }
  std::string joined;
  for (const auto& part : *content) {
    const bool is_text =
        part.is_object() && part.value("type", json()) == "text" && part.value("text", json()).is_string();
    if (!is_text) {
      fields.fail(bad_field(path + ".content",
                            "'" + path +
                                ".content' holds a part that is not {\"type\": \"text\", \"text\": \"...\"}; "
                                "only text is supported."));
      return {};
    }
    joined += part["text"].get_ref<const std::string&>();
  }
  return joined;
}

void read_messages(body_fields& fields, generation_request& out) {
  const auto* messages = fields.find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    fields.fail("messages", "must be a non-empty array of {\"role\": ..., \"content\": ...}.",
                messages == nullptr ? "missing_required_parameter" : "invalid_type");
    return;
  }
  for (size_t i = 0; i < messages->size() && !fields.failure(); ++i) {
    const auto& message = (*messages)[i];
    const auto path = "messages[" + std::to_string(i) + "]";
    const auto role_value = message.is_object() ? message.value("role", json()) : json();
    auto role = role_value.is_string() ? role_value.get<std::string>() : std::string();
    if (role == "developer") {
      role = "system";  // OpenAI's newer name for the same thing
    }
    if (role != "system" && role != "user" && role != "assistant") {
      fields.fail(bad_field(path + ".role", "'" + path +
                                                ".role' must be 'system', 'user' or 'assistant'; "
                                                "tool messages are not supported."));
      return;
    }
    out.messages.push_back({.role = std::move(role), .content = read_content(fields, message, path), .tool_calls = {}});
  }
}

void read_prompt_ids(body_fields& fields, const json& ids, generation_request& out) {
  for (const auto& id : ids) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > uint64_t{std::numeric_limits<int32_t>::max()}) {
      fields.fail("prompt", "as token ids must hold whole numbers from 0 to 2147483647; it holds " + describe(id) + ".",
                  "invalid_type");
      return;
    }
    out.prompt_ids.push_back(id.get<int32_t>());
  }
}

void read_prompt(body_fields& fields, generation_request& out) {
  const auto* prompt = fields.find("prompt");
  if (prompt == nullptr) {
    fields.fail("prompt", "is missing; send a string, or an array of token ids.", "missing_required_parameter");
    return;
  }
  if (prompt->is_array() && prompt->size() == 1 && (prompt->front().is_string() || prompt->front().is_array())) {
    prompt = &prompt->front();  // a batch of one
  }
  if (prompt->is_string()) {
    out.prompt = prompt->get<std::string>();
  } else if (prompt->is_array() && !prompt->empty() && prompt->front().is_number()) {
    read_prompt_ids(fields, *prompt, out);
  } else if (prompt->is_array() && prompt->size() > 1) {
    fields.fail("prompt", "may hold one prompt; send several requests, which are batched all the same.");
  } else {
    fields.fail("prompt", "must be a string, an array of one string, or a non-empty array of token ids.",
                "invalid_type");
  }
}

void read_chat_logprobs(body_fields& fields, api_request& out) {
  out.logprobs = fields.boolean("logprobs", false);
  if (const auto* alternatives = fields.find("top_logprobs"); alternatives != nullptr && *alternatives != 0) {
    fields.fail("top_logprobs", "must be 0 or absent: only the chosen token's logprob is reported.",
                "unsupported_parameter");
  }
}

void read_completion_logprobs(body_fields& fields, api_request& out) {
  const auto* wanted = fields.find("logprobs");
  if (wanted == nullptr) return;
  if (*wanted != 0 && *wanted != 1) {
    fields.fail("logprobs",
                "must be 0 or 1, not " + describe(*wanted) + ": only the chosen token's logprob is reported.",
                "unsupported_parameter");
  }
  out.logprobs = true;
}

parsed_request parse_request(std::string_view body, api_kind kind) {
  auto parsed = parse_strict_json(body);
  if (const auto* problem = std::get_if<std::string>(&parsed))
    return api_error{.message = "The request body is not acceptable JSON: " + *problem + ".", .code = "invalid_json"};
  const auto& object = std::get<json>(parsed);
  if (!object.is_object()) {
    return api_error{.message = "The request body must be a JSON object, not " + describe(object) + ".",
                     .code = "invalid_json"};
  }
  const auto served = kind == api_kind::chat ? std::span<const std::string_view>(chat_names)
                                             : std::span<const std::string_view>(completion_names);
  if (auto refusal = check_unserved_fields(object, served)) return *refusal;
  api_request request{.kind = kind};
  body_fields fields(object);
  request.generation.model = fields.text("model");
  if (kind == api_kind::chat) {
    read_messages(fields, request.generation);
    read_chat_logprobs(fields, request);
  } else {
    read_prompt(fields, request.generation);
    read_completion_logprobs(fields, request);
  }
  read_max_tokens(fields, request.generation);
  read_sampling(fields, request.generation);
  read_stop(fields, request.generation);
  read_stream(fields, request);
  if (fields.failure()) return *fields.failure();
  return request;
}

}  // namespace

parsed_request parse_chat_request(std::string_view body) { return parse_request(body, api_kind::chat); }
parsed_request parse_completion_request(std::string_view body) { return parse_request(body, api_kind::completion); }

}  // namespace troupe::http
