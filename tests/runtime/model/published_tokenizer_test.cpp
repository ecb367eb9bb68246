// Against DeepSeek-V3's own tokenizer.json, where it is at hand (MODEL.md 13.1 and 17.8).
#include <doctest/doctest.h>

#include <filesystem>

#include "runtime/model/chat_template.hpp"
#include "runtime/model/detokeniser.hpp"
#include "runtime/model/tokenizer.hpp"
#include "tests/runtime/model/samples.hpp"

using namespace troupe;
using ids_t = std::vector<int32_t>;

namespace {

// Loaded once: 7.8 MB. Null where the file is absent.
const tokenizer* published() {
  static const auto loaded = tokenizer::load(TROUPE_SOURCE_DIR "/../shared/tokenizer/deepseek_v3");
  if (loaded) return &*loaded;
  MESSAGE("skipped: ", loaded.failure().message);
  // Absent is fine, unreadable is not.
  CHECK(loaded.failure().code == errc::not_found);
  return nullptr;
}

}  // namespace

TEST_CASE("DeepSeek-V3's tokenizer gives the published ids") {
  const tokenizer* source = published();
  if (source == nullptr) return;
  CHECK(source->size() == 128815);
  CHECK(source->bos() == 0);
  CHECK(source->eos() == 1);
  CHECK(source->add_bos());
  const std::pair<const char*, ids_t> vectors[] = {
      {"Hello, world!", {19923, 14, 2058, 3}},
      {"Hello!", {19923, 3}},
      {" hello", {44388}},
      {"DeepSeek-V3 has 671B parameters.", {53091, 4374, 1465, 13582, 21, 769, 223, 26612, 36, 8252, 16}},
      {"12345678", {6895, 18009, 2597}},
      {"a  1", {67, 262, 19}},
      {"a   b", {67, 262, 291}},
      {"x\n\n  y", {90, 271, 223, 383}},
      {"  \n", {2143}},
      {"\r\n\r\n", {204, 201, 204, 201}},
      {"\n\n", {271}},
      {"\tTab", {200, 36440}},
      {"你好，世界", {30594, 303, 3427}},
      {"日本語テスト", {88768, 109288}},
      {"한국어", {5634, 17564, 9227}},
      {"naïve café", {2720, 91223, 57664}},
      {"def f(x):\n    return x**2\n", {3465, 285, 4042, 3395, 361, 1354, 1527, 666, 20, 201}},
      {"I'm don't", {43, 4571, 2090, 1664}},
      {"e\u0301", {71, 17793}},
      {"\u00e9", {619}},
      {"😀 emoji", {28927, 225, 980, 82644}},
      {"$100.50", {6, 1457, 16, 1328}},
      {"http://a.b/c?d=1", {6900, 2272, 67, 6229, 5252, 33, 70, 31, 19}},
      {"foo_bar", {40897, 100869}},
      {"!!!abc", {34513, 32372}},
      {"①②③④ 一二", {104894, 21686, 28650, 223, 49548}},
      {"\u00a0x", {2162, 90}},
      {"a\u3000b", {67, 18524, 68}},
      {"<｜User｜>Hi<｜Assistant｜>", {128803, 23166, 128804}},
      {"<think>\n", {30, 37947, 1018}},
      {"</think>", {1718, 37947, 32}},
      {"The quick brown fox — jumps over 13 lazy dogs…\n\n\tEnd.\u200b",
       {671, 4787, 13769, 46012, 2136, 54994, 1060, 223, 907, 41638, 13757, 7513, 200, 13920, 16, 35020}},
  };
  for (const auto& [text, ids] : vectors) {
    CAPTURE(std::string(text));
    CHECK(source->encode(text) == ids);
    CHECK(source->decode(ids) == text);
  }
  CHECK(source->decode(ids_t{0, 19923, 3}) == "<｜begin▁of▁sentence｜>Hello!");
  CHECK(source->encode("Hello!", {.parse_added = true, .add_bos = true}) == ids_t{0, 19923, 3});
  CHECK(source->is_special(128805));
  CHECK_FALSE(source->is_special(128803));
  CHECK(source->token_bytes(129000).empty());
}

TEST_CASE("Every token of DeepSeek-V3's vocabulary has bytes, and decoding them gives them back") {
  const tokenizer* source = published();
  if (source == nullptr) return;
  int without = 0;
  int changed = 0;
  for (int32_t id = 0; id < source->size(); ++id) {
    if (source->token_bytes(id).empty()) ++without;
    const ids_t again = source->encode(source->token_bytes(id));
    if (source->is_added(id) && again != ids_t{id}) ++changed;
  }
  CHECK(without == 0);
  CHECK(changed == 0);
}

TEST_CASE("DeepSeek-V3's chat examples give the published ids") {
  const tokenizer* source = published();
  if (source == nullptr) return;
  const std::vector<chat_message> first = {{"system", "You are a helpful assistant.", {}}, {"user", "Hello!", {}}};
  const auto first_ids = encode_chat(*source, first, {});
  REQUIRE(first_ids);
  CHECK(*first_ids == ids_t{0, 3476, 477, 260, 11502, 22896, 16, 128803, 19923, 3, 128804});
  const std::vector<chat_message> second = {{"user", "1+1=?", {}}, {"assistant", "2", {}}, {"user", "And 2+2?", {}}};
  const auto second_ids = encode_chat(*source, second, {});
  REQUIRE(second_ids);
  CHECK(*second_ids == ids_t{0, 128803, 19, 13, 19, 127252, 128804, 20, 1, 128803, 4195, 223, 20, 13, 20, 33, 128804});
}

TEST_CASE("Random text survives DeepSeek-V3's tokenizer, streamed too") {
  const tokenizer* source = published();
  if (source == nullptr) return;
  const uint32_t seed = 31;
  INFO("seed ", seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    const std::string text = samples::random_text(random, random() % 200);
    const ids_t ids = source->encode(text);
    REQUIRE(source->decode(ids) == text);
    detokeniser stream(*source);
    std::string streamed;
    for (const int32_t id : ids) streamed += stream.push(id);
    REQUIRE(streamed + stream.flush() == text);
  }
}
