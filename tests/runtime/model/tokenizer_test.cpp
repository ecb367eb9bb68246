#include "runtime/model/tokenizer.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <map>
#include <thread>

#include "runtime/model/byte_pairs.hpp"
#include "runtime/model/regex_dialect.hpp"
#include "runtime/model/text_splitter.hpp"
#include "runtime/model/utf8.hpp"
#include "tests/runtime/model/samples.hpp"

using namespace troupe;
using nlohmann::json;
using ids_t = std::vector<int32_t>;

namespace {

tokenizer make(const json& file) {
  auto made = tokenizer::parse(file.dump(), samples::tokenizer_settings());
  REQUIRE(made);
  return *std::move(made);
}

// The sentence with which a changed tokenizer.json is refused; empty if it is accepted.
std::string refusal(const std::function<void(json&)>& change) {
  json file = samples::tokenizer_json(samples::few_merges());
  change(file);
  const auto parsed = tokenizer::parse(file.dump(), samples::tokenizer_settings());
  return parsed ? "" : parsed.failure().message;
}

// The definition: merge the leftmost pair of lowest rank until there is none.
ids_t merge_naively(std::string_view piece, const std::map<std::pair<int32_t, int32_t>, byte_pairs::merge>& merges) {
  ids_t ids(piece.begin(), piece.end());
  for (;;) {
    size_t best = ids.size();
    uint32_t best_rank = byte_pairs::no_rank;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = merges.find({ids[i], ids[i + 1]});
      if (found != merges.end() && found->second.rank < best_rank) {
        best = i;
        best_rank = found->second.rank;
      }
    }
    if (best == ids.size()) return ids;
    ids[best] = merges.at({ids[best], ids[best + 1]}).id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

std::vector<std::string> pieces_of(std::string_view pattern, std::string_view text) {
  const std::vector<std::string> patterns = {std::string(pattern)};
  const auto splitter = text_splitter::make(patterns);
  REQUIRE(splitter);
  std::vector<std::string> pieces;
  for (const std::string_view piece : splitter->split(text)) pieces.emplace_back(piece);
  return pieces;
}

}  // namespace

TEST_CASE("Text becomes merged pieces and bytes") {
  const tokenizer source = make(samples::tokenizer_json(samples::few_merges()));
  // Merges are 258 "he", 259 "ll", 260 "hell", 261 "hello", 262 " w", 263 "é", 264 half of "你", 265 "你".
  CHECK(source.encode("hello w") == ids_t{261, 262});
  CHECK(source.encode("hello wé") == ids_t{261, 262, 263});
  CHECK(source.encode("你x") == ids_t{265, 2 + 'x'});
  CHECK(source.encode("hhe") == ids_t{2 + 'h', 258});
  CHECK(source.encode("").empty());
  CHECK(source.decode(ids_t{261, 262}) == "hello w");
  CHECK(source.token_bytes(264) == "\xE4\xBD");
  CHECK(source.token_bytes(-1).empty());
  CHECK(source.token_bytes(source.size()).empty());
}

TEST_CASE("Added tokens are found first, the longest of those that begin leftmost") {
  json file = samples::tokenizer_json({});
  const int next = 258 + 13;
  for (const char* content : {"<a", "<a>b", "a>"}) {
    file["added_tokens"].push_back(
        {{"id", next + static_cast<int>(file["added_tokens"].size()) - 15}, {"content", content}, {"special", false}});
  }
  const tokenizer source = make(file);
  CHECK(source.encode("x<a>bc") == ids_t{2 + 'x', next + 1, 2 + 'c'});
  CHECK(source.encode("<a>c") == ids_t{next, 2 + '>', 2 + 'c'});
  CHECK(source.encode("<<a") == ids_t{2 + '<', next});
  CHECK(source.encode("<a>b", {.parse_added = false, .add_bos = false}) == ids_t{2 + '<', 2 + 'a', 2 + '>', 2 + 'b'});
  CHECK(source.find_added("<a>") == std::nullopt);
  CHECK(source.find_added("") == std::nullopt);
  CHECK(source.find_added("a>") == next + 2);
}

TEST_CASE("BOS is put first only when it is asked for and the model wants it") {
  const tokenizer source = make(samples::tokenizer_json({}));
  CHECK(source.bos() == 0);
  CHECK(source.eos() == 1);
  CHECK(source.encode("a", {.parse_added = true, .add_bos = true}) == ids_t{0, 2 + 'a'});
  CHECK(source.encode("a") == ids_t{2 + 'a'});
  auto without = tokenizer::parse(samples::tokenizer_json({}).dump(), "");
  REQUIRE(without);
  CHECK_FALSE(without->bos().has_value());
  CHECK(without->encode("a", {.parse_added = true, .add_bos = true}) == ids_t{2 + 'a'});
  CHECK_FALSE(tokenizer::parse(samples::tokenizer_json({}).dump(), R"({"bos_token": "<nobody>"})"));
  CHECK_FALSE(tokenizer::parse(samples::tokenizer_json({}).dump(), R"({"bos_token": 7})"));
}

TEST_CASE("Bytes that are not UTF-8 encode as the replacement character") {
  const tokenizer source = make(samples::tokenizer_json({}));
  CHECK(source.decode(source.encode("a\xFF\xE4\xBD")) ==
        "a" + std::string(replacement_character) + std::string(replacement_character));
}

TEST_CASE("Only flagged tokens are skipped in decoding") {
  const tokenizer source = make(samples::tokenizer_json({}));
  const int32_t user = *source.find_added("<｜User｜>");
  CHECK(source.decode(ids_t{0, user, 2 + 'a', 1}, true) == "<｜User｜>a");
  CHECK(source.is_special(0));
  CHECK_FALSE(source.is_special(user));
  CHECK(source.is_added(user));
  CHECK_FALSE(source.is_added(2 + 'a'));
}

TEST_CASE("Random text survives encoding and decoding") {
  const tokenizer source = make(samples::tokenizer_json(samples::few_merges()));
  const uint32_t seed = 4711;
  INFO("seed ", seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 500; ++round) {
    const std::string text = samples::random_text(random, random() % 120);
    REQUIRE(is_utf8(text));
    REQUIRE(source.decode(source.encode(text)) == text);
  }
}

TEST_CASE("Merging equals its definition for short and long pieces") {
  const uint32_t seed = 12;
  INFO("seed ", seed);
  std::mt19937 random(seed);
  std::array<int32_t, 256> byte_ids;
  for (size_t i = 0; i < 256; ++i) byte_ids[i] = static_cast<int32_t>(i);
  for (int round = 0; round < 60; ++round) {
    constexpr size_t merge_count = 40;
    byte_pairs pairs(byte_ids, merge_count);
    std::map<std::pair<int32_t, int32_t>, byte_pairs::merge> merges;
    ids_t known = {'a', 'b', 'c'};
    for (uint32_t rank = 0; rank < merge_count; ++rank) {
      const int32_t left = known[random() % known.size()];
      const int32_t right = known[random() % known.size()];
      const byte_pairs::merge made{rank, 300 + static_cast<int32_t>(rank)};
      const bool is_new = merges.emplace(std::pair(left, right), made).second;
      REQUIRE(pairs.add(left, right, made) == is_new);
      if (is_new) known.push_back(made.id);
    }
    for (const size_t length : {1, 2, 7, 30, 47, 48, 49, 200}) {
      std::string piece;
      for (size_t i = 0; i < length; ++i) piece += static_cast<char>('a' + random() % 3);
      ids_t ids;
      pairs.encode(piece, ids);
      REQUIRE(ids == merge_naively(piece, merges));
    }
  }
}

TEST_CASE("A tokenizer encodes the same from many threads at once") {
  const tokenizer source = make(samples::tokenizer_json(samples::few_merges()));
  std::mt19937 random(5);
  const std::string text = samples::random_text(random, 2000);
  const ids_t expected = source.encode(text);
  std::vector<std::thread> threads;
  std::array<bool, 4> same = {};
  for (bool& flag : same) {
    threads.emplace_back([&] {
      flag = true;
      for (int i = 0; i < 20; ++i) flag = flag && source.encode(text) == expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const bool flag : same) CHECK(flag);
}

TEST_CASE("Very long pieces take time in proportion") {
  const tokenizer source = make(samples::tokenizer_json(samples::few_merges()));
  for (const char* unit : {"a", " ", "!", "hello", "\n", "你", "é", " \n"}) {
    std::string text;
    while (text.size() < 300000) text += unit;
    CHECK(source.decode(source.encode(text)) == text);
  }
}

TEST_CASE("Merges may be pairs instead of strings") {
  json file = samples::tokenizer_json(samples::few_merges());
  for (json& merge : file["model"]["merges"]) {
    const auto text = merge.get<std::string>();
    merge = json::array({text.substr(0, text.find(' ')), text.substr(text.find(' ') + 1)});
  }
  CHECK(make(file).encode("hello w") == ids_t{261, 262});
}

TEST_CASE("Components this runtime lacks are refused by name") {
  const std::pair<std::function<void(json&)>, const char*> cases[] = {
      {[](json& f) {
         f["normalizer"] = {{"type", "NFC"}};
       },
       "NFC"},
      {[](json& f) {
         f["pre_tokenizer"] = {{"type", "Metaspace"}};
       },
       "ByteLevel"},
      {[](json& f) { f["pre_tokenizer"] = nullptr; }, "ByteLevel"},
      {[](json& f) { f["pre_tokenizer"]["pretokenizers"][0]["type"] = "Punctuation"; }, "Punctuation"},
      {[](json& f) { f["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; }, "Isolated"},
      {[](json& f) { f["pre_tokenizer"]["pretokenizers"][0]["invert"] = true; }, "inverted"},
      {[](json& f) {
         f["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"String", " "}};
       },
       "regular expression"},
      {[](json& f) { f["pre_tokenizer"]["pretokenizers"][3]["add_prefix_space"] = true; }, "add_prefix_space"},
      {[](json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\w+"; }, "\\w"},
      {[](json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "a*"; }, "match nothing"},
      {[](json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a"; }, "wrong"},
      {[](json& f) {
         f["post_processor"] = {{"type", "TemplateProcessing"}};
       },
       "TemplateProcessing"},
      {[](json& f) {
         f["decoder"] = {{"type", "WordPiece"}};
       },
       "WordPiece"},
      {[](json& f) { f["model"]["type"] = "Unigram"; }, "Unigram"},
      {[](json& f) { f["model"]["byte_fallback"] = true; }, "byte_fallback"},
      {[](json& f) { f["model"]["ignore_merges"] = true; }, "ignore_merges"},
      {[](json& f) { f["model"]["unk_token"] = "<unk>"; }, "unk_token"},
      {[](json& f) { f["added_tokens"][0]["lstrip"] = true; }, "lstrip"},
  };
  for (const auto& [change, part] : cases) {
    const std::string message = refusal(change);
    CAPTURE(message);
    CAPTURE(std::string(part));
    CHECK(message.find(part) != std::string::npos);
  }
}

TEST_CASE("A broken vocabulary is refused") {
  const std::pair<std::function<void(json&)>, const char*> cases[] = {
      {[](json& f) { f["model"]["vocab"].erase("a"); }, "byte 97"},
      {[](json& f) { f["model"]["vocab"]["a"] = 2 + 'b'; }, "shares its id"},
      {[](json& f) { f["model"]["vocab"]["a"] = -1; }, "no valid id"},
      {[](json& f) { f["model"]["vocab"]["a"] = 4000000000U; }, "no valid id"},
      {[](json& f) { f["model"]["vocab"]["你"] = 500; }, "byte alphabet"},
      {[](json& f) { f["model"]["vocab"][""] = 500; }, "byte alphabet"},
      {[](json& f) { f["model"]["merges"].push_back("h z"); }, "vocabulary lacks"},
      {[](json& f) { f["model"]["merges"].push_back("hz"); }, "neither"},
      {[](json& f) { f["model"]["merges"].push_back("h e"); }, "twice"},
      {[](json& f) { f["model"]["merges"] = 7; }, "merges"},
      {[](json& f) { f["model"]["vocab"] = json::array(); }, "vocab"},
      {[](json& f) { f["added_tokens"].push_back(f["added_tokens"][0]); }, "twice"},
      {[](json& f) { f["added_tokens"][0]["content"] = ""; }, "content"},
      {[](json& f) { f["added_tokens"][0]["id"] = 1e9; }, "content"},
      {[](json& f) { f["added_tokens"] = 7; }, "added_tokens"},
      {[](json& f) { f["added_tokens"][3] = 7; }, "content"},
  };
  for (const auto& [change, part] : cases) {
    const std::string message = refusal(change);
    CAPTURE(message);
    CAPTURE(std::string(part));
    CHECK(message.find(part) != std::string::npos);
  }
}

TEST_CASE("White space in a pattern is Unicode's, not the engine's") {
  // U+180E was white space once, and still is to PCRE2; U+0085 and U+3000 are.
  CHECK(pieces_of("\\s+", "a\u180Eb") == std::vector<std::string>{"a\u180Eb"});
  CHECK(pieces_of("\\s+", "a\u3000\u0085b") == std::vector<std::string>{"a", "\u3000\u0085", "b"});
  CHECK(pieces_of("[^\\s]+", "a\u2028b") == std::vector<std::string>{"a", "\u2028", "b"});
  CHECK(pieces_of("\\s+(?!\\S)", "a  b") == std::vector<std::string>{"a", " ", " b"});
  CHECK(pieces_of("\\s+$", "a \nb") == std::vector<std::string>{"a", " ", "\nb"});
  CHECK(pieces_of("\\p{N}{1,3}", "12345") == std::vector<std::string>{"123", "45"});
}

TEST_CASE("Constructs that engines disagree about are refused") {
  for (const char* pattern : {"\\w", "\\b", "\\h", "\\1a", "[a[b]]", "[a&&b]", "[\\S]", "[]a]", "(?<n>a)", "(?R)",
                              "(*UTF)a", "a{,3}b", "a{1,2}+", "\\", "\\Qa\\E", "(?#x)", "(?P<n>a)", "[[:alpha:]]"}) {
    CAPTURE(std::string(pattern));
    CHECK_FALSE(to_pcre2(pattern));
  }
  for (const char* pattern :
       {"(?:a|b)++", "(?i:'s|'t)", "(?<=a)b", "a(?!b)", "[^\\r\\n\\p{L}]?\\p{Lu}+", "\\x41\\x{4E00}", "a{2,3}"}) {
    CAPTURE(std::string(pattern));
    CHECK(to_pcre2(pattern));
  }
}

TEST_CASE("A pattern that exhausts the engine loses no text") {
  const std::string text(200, 'a');
  std::string joined;
  for (const std::string& piece : pieces_of("(?:a|a)+b", text)) joined += piece;
  CHECK(joined == text);
}
