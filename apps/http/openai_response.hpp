// The JSON documents of OpenAI's completion APIs, whole and in chunks.
//
// Pure functions; any thread. Text is put out exactly as the deltas brought it, so that the chunks of
// a stream, joined, are the whole answer of the same request without `stream`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "actors/api.hpp"
#include "apps/http/openai_request.hpp"

namespace troupe::http {

// What every document of one answer says.
struct response_head {
  api_kind kind = api_kind::chat;
  std::string id = {};     // "chatcmpl-..." or "cmpl-..."
  uint64_t created_s = 0;  // Unix seconds
  std::string model = {};
  std::string system_fingerprint = {};
  uint64_t seed = 0;  // with the request and the fingerprint, it names the tokens
  bool include_usage = false;
  bool logprobs = false;
};

struct token_usage {
  uint32_t prompt_tokens = 0;
  uint32_t completion_tokens = 0;
};

// One reported token. A token's text may be held back (half a character, the start of a stop string)
// and then comes with a later token, or, at the end of the answer, with none: the texts joined are the
// answer's text, or the beginning of it.
struct token_logprob {
  std::string text;
  float logprob = 0;
};

// The tokens of a delta; its text goes with the last of them.
std::vector<token_logprob> token_logprobs(const generation_delta& delta);

// Chat only: the chunk that names the role, before any text.
std::string render_role_chunk(const response_head& head);
// `text_offset`: how many characters of the answer came before (completion logprobs report it).
std::string render_delta_chunk(const response_head& head, const generation_delta& delta, uint64_t text_offset);
// Requires: `reason` is not `cancelled`, which OpenAI's API has no word for.
std::string render_finish_chunk(const response_head& head, finish_reason reason);
std::string render_usage_chunk(const response_head& head, token_usage usage);

// The answer without `stream`. Requires: `reason` is not `cancelled`.
std::string render_whole(const response_head& head, std::string_view text, const std::vector<token_logprob>& tokens,
                         finish_reason reason, token_usage usage);

// One served model, and the list of them.
std::string render_model(std::string_view model, uint64_t created_s);
std::string render_model_list(std::string_view model, uint64_t created_s);

// A server-sent event. Requires: `data` has no line break (JSON text has none); `id` likewise.
std::string sse_event(std::string_view data, std::string_view id = "");

// How many code points a UTF-8 text has.
uint64_t character_count(std::string_view text);

}  // namespace troupe::http
