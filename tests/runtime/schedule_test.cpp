#include "runtime/serving/schedule.hpp"

#include <doctest/doctest.h>

#include <fstream>

#include "runtime/serving/schedule_chooser.hpp"
#include "tests/small_model.hpp"

namespace troupe {
namespace {

std::string refusal(std::string_view yaml) {
  const auto read = parse_schedule(yaml);
  return read ? "accepted" : read.failure().message;
}

bool mentions(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

uint8_t rank_of(const schedule& read, stage_kind kind) { return read.ranks[index_of(kind)]; }

}  // namespace

TEST_CASE("the shipped schedules are what their names say") {
  const auto serial = find_schedule("serial", ".");
  REQUIRE(serial);
  CHECK(serial->choices == std::vector{schedule_choice{1, false}});
  const auto prefill = find_schedule("dual_prefill", ".");
  REQUIRE(prefill);
  CHECK(prefill->choices == std::vector{schedule_choice{2, false}});
  CHECK(rank_of(*prefill, stage_kind::attn) < rank_of(*prefill, stage_kind::mlp));
  CHECK(rank_of(*prefill, stage_kind::mlp) < rank_of(*prefill, stage_kind::shared));
  const auto decode = find_schedule("dual_decode", ".");
  REQUIRE(decode);
  CHECK(decode->choices == std::vector{schedule_choice{2, true}});
  CHECK(rank_of(*decode, stage_kind::shared) < rank_of(*decode, stage_kind::mlp));
  CHECK(rank_of(*decode, stage_kind::mlp) < rank_of(*decode, stage_kind::attn_1));
  CHECK(rank_of(*decode, stage_kind::attn_1) < rank_of(*decode, stage_kind::attn_0));
  const auto chosen = find_schedule("auto", ".");
  REQUIRE(chosen);
  CHECK(chosen->choices.size() > 2);
  CHECK(chosen->micro_batches_max() == 4);
}

TEST_CASE("a schedule survives its way to a node") {
  for (const auto& shipped : shipped_schedules()) {
    const auto read = parse_schedule(shipped.yaml);
    REQUIRE_MESSAGE(read, shipped.name << ": " << read.failure().message);
    const auto again = parse_schedule(to_yaml(*read));
    REQUIRE_MESSAGE(again, to_yaml(*read) << ": " << again.failure().message);
    CHECK(again->name == read->name);
    CHECK(again->choices == read->choices);
    CHECK(again->ranks == read->ranks);
    CHECK(again->probe_steps == read->probe_steps);
    CHECK(again->hysteresis_percent == read->hysteresis_percent);
  }
  CHECK(parse_schedule(to_yaml(schedule{})));
}

TEST_CASE("an impossible schedule is refused with the reason") {
  const std::string good = "micro_batches: 2\nattention: split\nprefer: [shared, attn_0, mlp, attn_1]\n";
  CHECK(refusal(good) == "accepted");
  CHECK(mentions(refusal("micro_batches: 0\nprefer: [attn, shared, mlp]"), "between 1 and 16"));
  CHECK(mentions(refusal("micro_batches: 17\nprefer: [attn, shared, mlp]"), "between 1 and 16"));
  CHECK(mentions(refusal("prefer: [attn, shared, mlp]"), "`micro_batches` is missing"));
  CHECK(mentions(refusal("micro_batches: 2\nprefer: [attn, shared]"), "leaves out mlp"));
  CHECK(mentions(refusal("micro_batches: 2\nprefer: [attn, attn_0, shared, mlp]"), "attn_0, which there is not"));
  CHECK(mentions(refusal("micro_batches: 2\nprefer: [attn, attn, shared, mlp]"), "twice"));
  CHECK(mentions(refusal("micro_batches: 2\nprefer: [attn, shared, mlp, combine]"), "'combine'"));
  CHECK(mentions(refusal("micro_batches: 2\nattention: thirds\nprefer: [attn, shared, mlp]"), "'thirds'"));
  CHECK(mentions(refusal("micro_batch: 2\nprefer: [attn, shared, mlp]"), "did you mean `micro_batches`"));
  CHECK(mentions(refusal("choose: []\nprefer: [attn, shared, mlp]"), "`choose` is empty"));
  CHECK(mentions(refusal("choose: [{attention: whole}]\nprefer: [attn, shared, mlp]"), "how many"));
  CHECK(mentions(refusal("choose: [{micro_batches: 2}, {micro_batches: 2}]\nprefer: [attn, shared, mlp]"),
                 "same choice"));
  CHECK(mentions(refusal("choose: [{micro_batches: 2}]\nmicro_batches: 1\nprefer: [attn, shared, mlp]"), "beside it"));
  CHECK(mentions(refusal("micro_batches: [\n"), "not YAML"));
}

TEST_CASE("a schedule is found by name, beside the configuration or by its path") {
  testing::temporary_directory directory;
  const std::string yaml = "name: mine\nmicro_batches: 3\nprefer: [mlp, attn, shared]\n";
  std::filesystem::create_directory(directory.path() / "schedules");
  std::ofstream(directory.path() / "schedules" / "mine.yaml") << yaml;
  const auto by_name = find_schedule("mine", directory.path());
  REQUIRE(by_name);
  CHECK(by_name->micro_batches_max() == 3);
  CHECK(find_schedule("schedules/mine.yaml", directory.path()));
  const auto missing = find_schedule("nine", directory.path());
  REQUIRE(!missing);
  CHECK(mentions(missing.failure().message, "serial"));
  CHECK(!find_schedule("schedules/nine.yaml", directory.path()));
  std::ofstream(directory.path() / "bad.yaml") << "micro_batches: two\n";
  const auto bad = find_schedule("bad.yaml", directory.path());
  REQUIRE(!bad);
  CHECK(mentions(bad.failure().message, "bad.yaml"));
  CHECK(mentions(bad.failure().message, "line 1"));
}

namespace {

// A shard whose steps of the whole batch take `cost(micro_batches)` ns; returns what the chooser uses after
// `steps` steps, when it does not measure.
template <class Cost>
uint32_t choose(schedule_chooser& chooser, uint32_t batch, int steps, uint64_t& now_ns, Cost&& cost) {
  for (int i = 0; i < steps || mentions(chooser.reason(), "being measured"); ++i) {
    const uint32_t parts = std::min(batch, chooser.current().micro_batches);
    now_ns += cost(chooser.current().micro_batches) / parts;
    chooser.step_ended(batch / parts, batch, 0, now_ns);
  }
  return chooser.current().micro_batches;
}

schedule choosing() {
  return *parse_schedule(
      "choose: [{micro_batches: 1}, {micro_batches: 2}, {micro_batches: 4}]\nprefer: [attn, mlp, shared]\n"
      "probe_steps: 4\nhysteresis_percent: 5\nreprobe_steps: 200\n");
}

}  // namespace

TEST_CASE("the fastest number of micro-batches is found by measuring, for each size of the batch") {
  schedule_chooser chooser(choosing());
  uint64_t now_ns = 1;
  const auto two_are_best = [](uint32_t parts) { return parts == 2 ? 1000U : parts == 1 ? 1500U : 1400U; };
  const auto one_is_best = [](uint32_t parts) { return parts == 1 ? 100U : 150U * parts; };
  CHECK(choose(chooser, 64, 200, now_ns, two_are_best) == 2);
  CHECK(choose(chooser, 2, 200, now_ns, one_is_best) == 1);
  // Known sizes need no second look.
  CHECK(choose(chooser, 64, 10, now_ns, two_are_best) == 2);
  CHECK(mentions(chooser.reason(), "2 whole (batch 64 to 127, decoding; rows/ms: 1 whole 4.267e+04, 2 whole 6.4e+04"));
}

TEST_CASE("a choice is kept while another is faster by less than the hysteresis") {
  schedule_chooser chooser(choosing());
  uint64_t now_ns = 1;
  CHECK(choose(chooser, 32, 200, now_ns, [](uint32_t parts) { return 1000U * parts; }) == 1);
  const auto slightly = [](uint32_t parts) { return parts == 2 ? 980U : 1000U; };
  CHECK(choose(chooser, 32, 2000, now_ns, slightly) == 1);
  const auto clearly = [](uint32_t parts) { return parts == 2 ? 900U : 1000U; };
  choose(chooser, 32, 2000, now_ns, clearly);
  CHECK(chooser.current().micro_batches == 2);
}

TEST_CASE("a batch is not cut into more micro-batches than it has rows") {
  schedule_chooser chooser(choosing());
  uint64_t now_ns = 1;
  for (int i = 0; i < 200; ++i) {
    now_ns += 100;
    chooser.step_ended(1, 1, 0, now_ns);
    CHECK(chooser.current().micro_batches == 1);
  }
}

}  // namespace troupe
