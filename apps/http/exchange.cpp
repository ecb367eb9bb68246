#include "apps/http/exchange.hpp"

#include <array>
#include <cstdio>
#include <iterator>
#include <utility>

namespace troupe::http {

namespace {

std::string answer_id(api_kind kind, const std::string& prefix, uint64_t request) {
  std::array<char, 17> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(request));
  return (kind == api_kind::chat ? "chatcmpl-" : "cmpl-") + prefix + digits.data();
}

}  // namespace

exchange::exchange(const api_request& request, response_head head, std::string id_prefix, size_t bytes_max)
    : head_(std::move(head)), id_prefix_(std::move(id_prefix)), stream_(request.stream), bytes_max_(bytes_max) {
  head_.kind = request.kind;
  head_.include_usage = request.include_usage;
  head_.logprobs = request.logprobs;
}

void exchange::on_event(generation_event event, exchange_output& output) {
  if (!ended_) {
    std::visit([&](auto& specific) { on(specific, output); }, event);
  }
}

void exchange::on(generation_accepted& accepted, exchange_output& output) {
  head_.id = answer_id(head_.kind, id_prefix_, accepted.request);
  head_.seed = accepted.seed;
  prompt_tokens_ = accepted.prompt_tokens;
  if (!stream_) return;
  begun_ = true;
  output.begin_stream = true;
  if (head_.kind == api_kind::chat) {
    output.events += sse_event(render_role_chunk(head_));
  }
}

void exchange::on(generation_delta& delta, exchange_output& output) {
  if (stream_) {
    // A delta without text has nothing to show, unless its tokens are asked for one by one.
    if (!delta.text.empty() || (head_.logprobs && !delta.tokens.empty())) {
      // The event's id is the index of the last token it covers: all up to it have been delivered.
      const uint64_t last = delta.index + (delta.tokens.empty() ? 0 : delta.tokens.size() - 1);
      output.events += sse_event(render_delta_chunk(head_, delta, characters_), std::to_string(last));
      characters_ += character_count(delta.text);
    }
    return;
  }
  constexpr size_t token_bytes = 128;  // what one token costs in the logprobs of the rendered answer
  bytes_ += delta.text.size() + (head_.logprobs ? delta.tokens.size() * token_bytes : 0);
  if (bytes_ > bytes_max_) {
    output.cancel = true;
    fail({.status = 500,
          .message = "The answer is longer than this server collects; ask for it with 'stream': true.",
          .type = "server_error",
          .code = "answer_too_long"},
         output);
    return;
  }
  text_ += delta.text;
  if (head_.logprobs) {
    auto tokens = token_logprobs(delta);
    tokens_.insert(tokens_.end(), std::make_move_iterator(tokens.begin()), std::make_move_iterator(tokens.end()));
  }
}

void exchange::on(generation_finished& finished, exchange_output& output) {
  if (finished.reason == finish_reason::cancelled) {
    fail(to_api_error({errc::cancelled, "The server gave the request up; send it again."}), output);
    return;
  }
  ended_ = true;
  output.done = true;
  const token_usage usage{prompt_tokens_, finished.completion_tokens};
  if (!stream_) {
    output.whole = reply{.body = render_whole(head_, text_, tokens_, finished.reason, usage)};
    return;
  }
  output.events += sse_event(render_finish_chunk(head_, finished.reason));
  if (head_.include_usage) {
    output.events += sse_event(render_usage_chunk(head_, usage));
  }
  output.events += sse_event("[DONE]");
}

void exchange::on(generation_failed& failed, exchange_output& output) { fail(to_api_error(failed.cause), output); }

void exchange::fail(const api_error& refusal, exchange_output& output) {
  ended_ = true;
  output.done = true;
  if (begun_) {
    output.events += sse_event(render(refusal));
  } else {
    output.whole = to_reply(refusal);
  }
}

}  // namespace troupe::http
