#include <doctest/doctest.h>

#include "runtime/model/detokeniser.hpp"
#include "runtime/model/stop_matcher.hpp"
#include "runtime/model/utf8.hpp"
#include "tests/runtime/model/samples.hpp"

using namespace troupe;

namespace {

tokenizer small_tokenizer() {
  auto made = tokenizer::parse(samples::tokenizer_json(samples::few_merges()).dump(), samples::tokenizer_settings());
  REQUIRE(made);
  return *std::move(made);
}

// What a matcher emits for `text` cut at random, and whether it stopped.
stop_matcher::output run(stop_matcher matcher, std::string_view text, std::mt19937& random) {
  stop_matcher::output total;
  while (!text.empty()) {
    const size_t bytes = std::min<size_t>(1 + random() % 4, text.size());
    const auto out = matcher.push(text.substr(0, bytes));
    text.remove_prefix(bytes);
    total.text += out.text;
    total.stopped = out.stopped;
  }
  if (!total.stopped) total.text += matcher.flush();
  return total;
}

}  // namespace

TEST_CASE("Wrong UTF-8 is replaced by the longest possible beginnings") {
  const std::string mark(replacement_character);
  CHECK(repair_utf8("plain") == "plain");
  CHECK(repair_utf8("\xC3\xA9") == "\xC3\xA9");
  CHECK(repair_utf8("a\xFFz") == "a" + mark + "z");
  CHECK(repair_utf8("\xE4\xBDx") == mark + "x");
  CHECK(repair_utf8("\xF0\x9F\x98") == mark);
  CHECK(repair_utf8("\xC0\xAF") == mark + mark);
  CHECK(repair_utf8("\xED\xA0\x80") == mark + mark + mark);
  CHECK(repair_utf8("\xF4\x90\x80\x80") == mark + mark + mark + mark);
  CHECK_FALSE(is_utf8("\xE2\x82"));
  CHECK(is_utf8("\xF4\x8F\xBF\xBF"));
}

TEST_CASE("A detokeniser holds a character back until it is complete") {
  const tokenizer source = small_tokenizer();
  detokeniser stream(source);
  CHECK(stream.push(2 + 0xF0).empty());
  CHECK(stream.push(2 + 0x9F).empty());
  CHECK(stream.push(2 + 0x98).empty());
  CHECK(stream.push(2 + 0x80) == "😀");
  CHECK(stream.push(2 + 0xE4).empty());
  CHECK(stream.push(2 + 'x') == std::string(replacement_character) + "x");
  CHECK(stream.push(2 + 0xC3).empty());
  CHECK(stream.flush() == replacement_character);
  CHECK(stream.flush().empty());
}

TEST_CASE("A detokeniser skips special tokens but keeps markers") {
  const tokenizer source = small_tokenizer();
  const int32_t user = *source.find_added("<｜User｜>");
  detokeniser quiet(source);
  CHECK(quiet.push(1).empty());
  CHECK(quiet.push(user) == "<｜User｜>");
  detokeniser loud(source, false);
  CHECK(loud.push(1) == samples::eos);
  CHECK(loud.push(999999).empty());
  CHECK(loud.push(-1).empty());
}

TEST_CASE("A detokeniser emits whole characters only, and in sum what decode gives") {
  const tokenizer source = small_tokenizer();
  const uint32_t seed = 20260701;
  INFO("seed ", seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    std::vector<int32_t> ids;
    for (int i = 0; i < 40; ++i)
      ids.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(source.size() + 3)));
    for (const int32_t id : source.encode(samples::random_text(random, 30))) ids.push_back(id);
    detokeniser stream(source);
    std::string text;
    bool whole = true;
    for (const int32_t id : ids) {
      const std::string piece = stream.push(id);
      whole = whole && is_utf8(piece);
      text += piece;
    }
    text += stream.flush();
    REQUIRE(whole);
    REQUIRE(text == source.decode(ids, true));
  }
}

TEST_CASE("Without stop strings text passes at once") {
  stop_matcher matcher;
  CHECK(matcher.push("abc").text == "abc");
  CHECK(matcher.flush().empty());
}

TEST_CASE("A stop string is found across pieces and is not part of the text") {
  auto matcher = stop_matcher::make({"\n\nUser:"});
  REQUIRE(matcher);
  CHECK(matcher->push("Hello\n").text == "Hello");
  CHECK(matcher->push("\nUs").text.empty());
  const auto out = matcher->push("er: more");
  CHECK(out.text.empty());
  CHECK(out.stopped);
  CHECK(matcher->matched() == "\n\nUser:");
  CHECK(matcher->push("after").stopped);
  CHECK(matcher->flush().empty());
}

TEST_CASE("A beginning that does not go on is emitted after all") {
  auto matcher = stop_matcher::make({"aab"});
  REQUIRE(matcher);
  CHECK(matcher->push("aa").text.empty());
  CHECK(matcher->push("aa").text == "aa");
  CHECK(matcher->push("c").text == "aac");
  CHECK(matcher->push("a").text.empty());
  CHECK(matcher->flush() == "a");
}

TEST_CASE("The stop string that is complete first wins, and of those the longest") {
  std::mt19937 random(7);
  auto matcher = stop_matcher::make({"abcd", "bc", "xbc"});
  REQUIRE(matcher);
  for (int round = 0; round < 20; ++round) {
    CHECK(run(*matcher, "-abcd", random).text == "-a");
    CHECK(run(*matcher, "-xbc", random).text == "-");
  }
}

TEST_CASE("A stop matcher gives the same result for every cut") {
  const uint32_t seed = 99;
  INFO("seed ", seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 500; ++round) {
    const auto word = [&](size_t least, size_t most) {
      std::string text;
      for (size_t i = least + random() % (most - least + 1); i > 0; --i) text += static_cast<char>('a' + random() % 2);
      return text;
    };
    auto matcher = stop_matcher::make({word(1, 6), word(3, 8)});
    REQUIRE(matcher);
    const std::string text = word(0, 30);
    stop_matcher whole = *matcher;
    auto expected = whole.push(text);
    if (!expected.stopped) expected.text += whole.flush();
    const auto pieces = run(*matcher, text, random);
    REQUIRE(pieces.text == expected.text);
    REQUIRE(pieces.stopped == expected.stopped);
  }
}

TEST_CASE("Stop strings that cannot work are refused") {
  CHECK_FALSE(stop_matcher::make({""}));
  CHECK_FALSE(stop_matcher::make({"\xFF"}));
  CHECK_FALSE(stop_matcher::make({std::string(stop_matcher::stop_bytes_max + 1, 'a')}));
  CHECK_FALSE(stop_matcher::make(std::vector<std::string>(stop_matcher::stops_max + 1, "a")));
}
