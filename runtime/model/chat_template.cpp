#include "runtime/model/chat_template.hpp"

#include <utility>

#include "runtime/model/json_text.hpp"

namespace troupe {

namespace {

// The bars are U+FF5C and the low lines U+2581, as in the models' vocabularies.
constexpr std::string_view bos_marker = "<｜begin▁of▁sentence｜>";
constexpr std::string_view eos_marker = "<｜end▁of▁sentence｜>";
constexpr std::string_view user_marker = "<｜User｜>";
constexpr std::string_view assistant_marker = "<｜Assistant｜>";
constexpr std::string_view calls_begin = "<｜tool▁calls▁begin｜>";
constexpr std::string_view calls_end = "<｜tool▁calls▁end｜>";
constexpr std::string_view call_begin = "<｜tool▁call▁begin｜>";
constexpr std::string_view call_end = "<｜tool▁call▁end｜>";
constexpr std::string_view outputs_begin = "<｜tool▁outputs▁begin｜>";
constexpr std::string_view outputs_end = "<｜tool▁outputs▁end｜>";
constexpr std::string_view output_begin = "<｜tool▁output▁begin｜>";
constexpr std::string_view output_end = "<｜tool▁output▁end｜>";
constexpr std::string_view tool_separator = "<｜tool▁sep｜>";
constexpr std::string_view think_begin = "<think>";
constexpr std::string_view think_end = "</think>";

bool calls_tools(const chat_message& message) { return !message.tool_calls.empty(); }
std::string_view content_of(const chat_message& message) {
  return message.content ? std::string_view(*message.content) : std::string_view();
}

// A complaint about one message, or nothing.
std::optional<std::string> complaint_about(const chat_message& message, chat_style style) {
  const bool assistant = message.role == "assistant";
  if (!assistant && message.role != "system" && message.role != "user" && message.role != "tool") {
    return "has the unknown role " + shown(message.role) + "; system, user, assistant and tool are known";
  }
  if (!assistant && calls_tools(message)) return "carries tool calls, which only the assistant makes";
  if (!message.content && !calls_tools(message)) return "has no content";
  if (style == chat_style::v3 && calls_tools(message) && !content_of(message).empty()) {
    return "has both content and tool calls, which this model's template cannot express; send two messages";
  }
  return std::nullopt;
}

// Writes a conversation message by message. The flags are the template's own: two of them are set once
// in a conversation and never reset.
class writer {
 public:
  explicit writer(const chat_options& options) : options_(options) {}

  void system(std::span<const chat_message> messages) {
    mark(bos_marker);
    bool first = true;
    for (const chat_message& message : messages) {
      if (message.role != "system") continue;
      if (!std::exchange(first, false)) say("\n\n");
      say(content_of(message));
    }
  }

  void message(const chat_message& message) {
    if (message.role == "user") {
      in_tool_mode_ = false;
      mark(user_marker);
      say(content_of(message));
    } else if (message.role == "tool") {
      tool_output(content_of(message));
    } else if (message.role == "assistant") {
      calls_tools(message) ? tool_calls(message) : reply(content_of(message));
    }
  }

  std::vector<chat_segment> finish() {
    if (in_tool_mode_) {
      mark(outputs_end);
    } else if (options_.add_generation_prompt) {
      mark(assistant_marker);
      if (!options_.generation_suffix.empty()) mark(options_.generation_suffix);
    }
    return std::move(segments_);
  }

 private:
  void mark(std::string_view marker) { segments_.push_back({std::string(marker), true}); }

  // Neighbouring data is one segment, since it is tokenised as one text.
  void say(std::string_view text) {
    if (text.empty()) return;
    if (segments_.empty() || segments_.back().is_markup) segments_.emplace_back();
    segments_.back().text += text;
  }

  // R1 is not shown what it thought earlier.
  std::string_view replayed(std::string_view content) const {
    const size_t thought = options_.style == chat_style::r1 ? content.rfind(think_end) : content.npos;
    return thought == content.npos ? content : content.substr(thought + think_end.size());
  }

  void reply(std::string_view content) {
    mark(in_tool_mode_ ? outputs_end : assistant_marker);
    in_tool_mode_ = false;
    say(replayed(content));
    mark(eos_marker);
  }

  void tool_calls(const chat_message& message) {
    in_tool_mode_ = false;
    const bool v3 = options_.style == chat_style::v3;
    for (const chat_tool_call& call : message.tool_calls) {
      const bool first = !std::exchange(called_tools_, true);
      if (first) {
        mark(assistant_marker);
        say(replayed(content_of(message)));
        mark(calls_begin);
      } else {
        say("\n");
      }
      tool_call(call);
      // V3's template closes the list after every call but the first of the conversation.
      if (v3 && !first) close_calls();
    }
    if (!v3) close_calls();
  }

  void tool_call(const chat_tool_call& call) {
    mark(call_begin);
    say(call.type);
    mark(tool_separator);
    say(call.name);
    say("\n```json\n");
    say(call.arguments);
    say("\n```");
    mark(call_end);
  }

  void close_calls() {
    mark(calls_end);
    mark(eos_marker);
  }

  void tool_output(std::string_view content) {
    in_tool_mode_ = true;
    if (!std::exchange(had_output_, true)) {
      mark(outputs_begin);
    } else if (options_.style == chat_style::v3) {
      say("\n");
    }
    mark(output_begin);
    say(content);
    mark(output_end);
  }

  const chat_options& options_;
  std::vector<chat_segment> segments_;
  bool in_tool_mode_ = false;
  bool called_tools_ = false;
  bool had_output_ = false;
};

}  // namespace

result<std::vector<chat_segment>> render_chat(std::span<const chat_message> messages, const chat_options& options) {
  if (messages.empty()) return error{errc::invalid_argument, "A conversation needs at least one message."};
  for (size_t i = 0; i < messages.size(); ++i) {
    if (const auto complaint = complaint_about(messages[i], options.style)) {
      return error{errc::invalid_argument, "Message " + std::to_string(i + 1) + " " + *complaint + "."};
    }
  }
  writer out(options);
  out.system(messages);
  for (const chat_message& message : messages) out.message(message);
  return out.finish();
}

std::string join(std::span<const chat_segment> segments) {
  std::string text;
  for (const chat_segment& segment : segments) text += segment.text;
  return text;
}

result<std::vector<int32_t>> encode_chat(const tokenizer& source, std::span<const chat_message> messages,
                                         const chat_options& options) {
  const result<std::vector<chat_segment>> segments = render_chat(messages, options);
  if (!segments) return segments.failure();
  std::vector<int32_t> ids;
  for (const chat_segment& segment : *segments) {
    const std::vector<int32_t> more = source.encode(segment.text, {.parse_added = segment.is_markup, .add_bos = false});
    const bool is_marker = segment.is_markup && segment.text.starts_with("<｜");
    if (is_marker && !source.find_added(segment.text)) {
      return error{errc::unsupported, "The model's tokenizer has no token " + shown(segment.text) +
                                          ", which its chat template needs for this conversation."};
    }
    ids.insert(ids.end(), more.begin(), more.end());
  }
  return ids;
}

reasoning_split split_reasoning(std::string_view reply) {
  const size_t end = reply.find(think_end);
  if (end == reply.npos) return {{}, std::string(reply)};
  std::string_view reasoning = reply.substr(0, end);
  if (reasoning.starts_with(think_begin)) reasoning.remove_prefix(think_begin.size());
  return {std::string(reasoning), std::string(reply.substr(end + think_end.size()))};
}

}  // namespace troupe
