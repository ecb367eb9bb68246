// Conversations to prompts, by the rules of DeepSeek-V3's and R1's templates (MODEL.md 13.1, 13.2).
//
// The result is a list of segments: markup that the template itself writes, and text that came with
// the messages. Only markup is searched for control tokens, so a user who types "<｜Assistant｜>" gets
// ordinary text. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/error.hpp"
#include "runtime/model/tokenizer.hpp"

namespace troupe {

enum class chat_style : uint8_t { v3, r1 };

struct chat_tool_call {
  std::string type = "function";
  std::string name;
  std::string arguments;  // JSON text, copied as it is
};

struct chat_message {
  std::string role;                    // "system", "user", "assistant", "tool"
  std::optional<std::string> content;  // absent only for an assistant that calls tools
  std::vector<chat_tool_call> tool_calls;
};

struct chat_options {
  chat_style style = chat_style::v3;
  bool add_generation_prompt = true;
  // Follows "<｜Assistant｜>" in the generation prompt; "<think>\n" makes R1 reason first.
  std::string generation_suffix;
};

struct chat_segment {
  std::string text;
  bool is_markup = false;  // written by the template; else data
};

// Fails: invalid_argument (no messages, unknown role, content missing or tool calls out of place; the
// sentence counts messages from 1).
result<std::vector<chat_segment>> render_chat(std::span<const chat_message> messages, const chat_options& options);

// The prompt as one string, for display.
std::string join(std::span<const chat_segment> segments);

// The prompt's ids; begins with BOS.
// Fails: as render_chat, and unsupported when the tokenizer lacks a marker the template needs.
result<std::vector<int32_t>> encode_chat(const tokenizer& source, std::span<const chat_message> messages,
                                         const chat_options& options);

struct reasoning_split {
  std::string reasoning;  // before the first "</think>", without a leading "<think>"
  std::string answer;     // after it
};
// Splits a finished R1 reply. Without "</think>" everything is the answer.
reasoning_split split_reasoning(std::string_view reply);

}  // namespace troupe
