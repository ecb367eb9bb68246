#include "runtime/serving/sequence_batcher.hpp"

#include <doctest/doctest.h>

#include <array>

namespace troupe {
namespace {

kernels::kv_layout small_layout() {
  kernels::kv_layout layout;
  layout.rk = 4;
  layout.dr = 2;
  layout.block_bytes = 1024;
  return layout;
}

std::unique_ptr<sequence> prompt_of(uint64_t request, uint32_t tokens, uint32_t max_tokens, uint32_t attempt = 0) {
  auto made = std::make_unique<sequence>();
  made->request = request_id{request};
  made->attempt = attempt;
  made->tokens.assign(tokens, 7);
  made->prompt_tokens = tokens;
  made->max_tokens = max_tokens;
  return made;
}

// Of two micro-batches, the part of their layers that is still ahead.
constexpr std::array none_runs{0.0, 0.0}, first_begins{1.0, 0.0}, first_is_half_through{0.5, 0.0};

struct fixture {
  kv_cache cache{small_layout(), 1, 16};
  sequence_batcher batcher{{.rows_max = 32, .chunk = 8, .micro_batches = 2, .sequences_max = 4}, cache};
  std::vector<batch_row> rows;
  std::vector<uint32_t> follows;
  bool pick(uint32_t micro_batch, std::vector<batch_row>& into, std::span<const double> ahead = none_runs) {
    return batcher.pick(micro_batch, ahead, into, follows);
  }

  // Ends a micro-batch; every sampled token is 9, and a sequence leaves after `last` tokens.
  void finish(uint32_t last) {
    batcher.finish(rows, [&](sequence& owner, size_t, bool) {
      owner.tokens.push_back(9);
      return owner.completion_tokens() >= last;
    });
  }
};

}  // namespace

TEST_CASE("a prompt is computed in chunks, and only its last row samples") {
  fixture f;
  REQUIRE(f.batcher.add(prompt_of(1, 20, 4)));
  for (const size_t expected : {8U, 8U, 4U}) {
    REQUIRE(f.pick(0, f.rows));
    CHECK(f.rows.size() == expected);
    CHECK(f.rows.back().samples == (expected == 4));
    f.finish(4);
  }
  CHECK(!f.pick(0, f.rows));  // waits for its place to decode
  REQUIRE(f.batcher.start_decoding(request_id{1}, 0));
  REQUIRE(f.pick(0, f.rows));
  REQUIRE(f.rows.size() == 1);
  CHECK(f.rows[0].position == 20);
  CHECK(f.rows[0].token == 9);
}

TEST_CASE("a sequence is in one micro-batch at a time, and each kind is shared out evenly") {
  fixture f;
  for (uint64_t i = 0; i < 4; ++i) REQUIRE(f.batcher.add(prompt_of(i, 8, 4)));
  std::vector<batch_row> second;
  REQUIRE(f.pick(0, f.rows));
  REQUIRE(f.pick(1, second, first_begins));
  CHECK(f.rows.size() == 16);
  CHECK(second.size() == 16);
  CHECK(f.rows.front().owner != second.front().owner);
  std::vector<batch_row> third;
  CHECK(!f.pick(0, third, first_begins));
}

TEST_CASE("KV blocks are taken at admission and all come back") {
  fixture f;
  REQUIRE(f.batcher.add(prompt_of(1, 8, 24)));
  CHECK(f.cache.free_count() == 15);
  REQUIRE(f.pick(0, f.rows));
  f.finish(1);
  CHECK(f.cache.free_count() == 16);
  CHECK(f.batcher.size() == 0);
}

TEST_CASE("what is cancelled in a running micro-batch is freed when that ends") {
  fixture f;
  REQUIRE(f.batcher.add(prompt_of(1, 8, 24)));
  REQUIRE(f.pick(0, f.rows));
  CHECK(f.batcher.cancel(request_id{1}, 0));
  CHECK(f.cache.free_count() == 15);
  bool heard = false;
  f.batcher.finish(f.rows, [&](sequence&, size_t, bool) { return heard = true; });
  CHECK(!heard);
  CHECK(f.cache.free_count() == 16);
}

TEST_CASE("a newer attempt replaces an older one, and an older one is ignored") {
  fixture f;
  REQUIRE(f.batcher.add(prompt_of(1, 8, 24, 1)));
  REQUIRE(f.batcher.add(prompt_of(1, 8, 24, 0)));
  CHECK(f.batcher.find(request_id{1}, 1) != nullptr);
  REQUIRE(f.batcher.add(prompt_of(1, 9, 24, 2)));
  CHECK(f.batcher.find(request_id{1}, 1) == nullptr);
  CHECK(f.batcher.find(request_id{1}, 2) != nullptr);
  CHECK(f.batcher.size() == 1);
}

TEST_CASE("too many sequences, and one that can never fit, are refused with a sentence") {
  fixture f;
  for (uint64_t i = 0; i < 4; ++i) REQUIRE(f.batcher.add(prompt_of(i, 8, 4)));
  const auto full = f.batcher.add(prompt_of(9, 8, 4));
  REQUIRE(!full);
  CHECK(full.failure().code == errc::exhausted);
  fixture g;
  const auto huge = g.batcher.add(prompt_of(1, 8, 10000));
  REQUIRE(!huge);
  CHECK(huge.failure().code == errc::invalid_argument);
}

TEST_CASE("a long prompt is split between micro-batches, so that each has half of its attention work") {
  kv_cache cache{small_layout(), 1, 64};
  sequence_batcher batcher{{.rows_max = 1024, .chunk = 1024, .micro_batches = 2, .sequences_max = 4}, cache};
  REQUIRE(batcher.add(prompt_of(1, 600, 4)));
  std::vector<batch_row> first, second;
  std::vector<uint32_t> follows;
  REQUIRE(batcher.pick(0, none_runs, first, follows));
  CHECK(follows.empty());
  REQUIRE(batcher.pick(1, first_begins, second, follows));
  CHECK(follows == std::vector<uint32_t>{0});  // its keys must come first
  REQUIRE(first.size() + second.size() == 600);
  CHECK(first.size() > second.size());  // later rows read more keys
  CHECK(second.front().position == static_cast<int32_t>(first.size()));
  CHECK(second.back().samples);
  const auto half = sequence_batcher::work_of(0, 600) / 2;
  const auto difference = static_cast<int64_t>(sequence_batcher::work_of(0, first.size())) - static_cast<int64_t>(half);
  CHECK(std::abs(difference) < static_cast<int64_t>(sequence_batcher::row_work + 600));
  // The second part may end first; the sequence decodes when both have ended.
  const auto emit = [](sequence& owner, size_t, bool) {
    owner.tokens.push_back(9);
    return false;
  };
  batcher.finish(second, emit);
  REQUIRE(batcher.start_decoding(request_id{1}, 0));
  CHECK(!batcher.pick(1, first_begins, second, follows));
  batcher.finish(first, emit);
  REQUIRE(batcher.pick(1, none_runs, second, follows));
  CHECK(second.size() == 1);
  CHECK(second[0].position == 600);
}

TEST_CASE("the last prompt is shared with a micro-batch that is half through its own, so that both end together") {
  kv_cache cache{small_layout(), 1, 128};
  sequence_batcher batcher{{.rows_max = 512, .chunk = 512, .micro_batches = 2, .sequences_max = 4}, cache};
  for (uint64_t i = 0; i < 3; ++i) REQUIRE(batcher.add(prompt_of(i, 512, 4)));
  std::vector<batch_row> first, second;
  std::vector<uint32_t> follows;
  REQUIRE(batcher.pick(0, none_runs, first, follows));
  REQUIRE(batcher.pick(1, first_begins, second, follows));
  CHECK(first.size() == 512);
  CHECK(second.size() == 512);
  batcher.finish(second, [](sequence&, size_t, bool) { return true; });
  REQUIRE(batcher.pick(1, first_is_half_through, second, follows));
  const auto whole = static_cast<double>(sequence_batcher::work_of(0, 512));
  const auto taken = static_cast<double>(sequence_batcher::work_of(0, second.size()));
  CHECK(taken == doctest::Approx(0.75 * whole).epsilon(0.01));  // half of the other's half and of this
  batcher.finish(first, [](sequence&, size_t, bool) { return true; });
  constexpr std::array second_has_a_third{0.0, 1.0 / 3};
  REQUIRE(batcher.pick(0, second_has_a_third, first, follows));
  CHECK(follows == std::vector<uint32_t>{1});
  CHECK(first.size() + second.size() == 512);
  CHECK(first.back().samples);
}

TEST_CASE("a short prompt does not wait for a micro-batch that is half through") {
  kv_cache cache{small_layout(), 1, 64};
  sequence_batcher batcher{{.rows_max = 512, .chunk = 512, .micro_batches = 2, .sequences_max = 4}, cache};
  std::vector<batch_row> first, second;
  std::vector<uint32_t> follows;
  REQUIRE(batcher.add(prompt_of(0, 100, 4)));
  REQUIRE(batcher.add(prompt_of(1, 100, 4)));
  REQUIRE(batcher.pick(0, none_runs, first, follows));
  CHECK(first.size() == 100);
  REQUIRE(batcher.pick(1, first_is_half_through, second, follows));
  CHECK(second.size() == 100);  // else 75, and the prompt ends when the other's 25 rows have
}

TEST_CASE("a prompt cancelled while it is in two micro-batches is freed when both have ended") {
  kv_cache cache{small_layout(), 1, 64};
  sequence_batcher batcher{{.rows_max = 1024, .chunk = 1024, .micro_batches = 2, .sequences_max = 4}, cache};
  REQUIRE(batcher.add(prompt_of(1, 600, 4)));
  std::vector<batch_row> first, second;
  std::vector<uint32_t> follows;
  REQUIRE(batcher.pick(0, none_runs, first, follows));
  REQUIRE(batcher.pick(1, first_begins, second, follows));
  CHECK(batcher.cancel(request_id{1}, 0));
  const auto silent = [](sequence&, size_t, bool) { return false; };
  batcher.finish(second, silent);
  CHECK(batcher.size() == 1);
  batcher.finish(first, silent);
  CHECK(batcher.size() == 0);
  CHECK(cache.free_count() == 64);
}

}  // namespace troupe
