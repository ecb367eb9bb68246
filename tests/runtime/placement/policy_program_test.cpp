#include "runtime/placement/policy_program.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "runtime/placement/evaluation.hpp"
#include "runtime/placement/policy_json.hpp"
#include "runtime/placement/simple_policies.hpp"
#include "tests/runtime/placement/samples.hpp"

namespace troupe {
namespace {

using testing::question;

question small() {
  question asked;
  asked.load = testing::made_load("log_normal:layers=2,experts=8,windows=3,sources=2");
  asked.topology = even_topology(2, 2, 3);
  asked.current = place_in_blocks(asked.input())->map;
  return asked;
}

constexpr uint32_t patient_ms = 60'000;  // so that a busy machine changes no verdict

// What `place` says of a program that answers with this command.
std::string verdict(const std::string& command, program_limits limits = {patient_ms, 16 << 20}) {
  const auto asked = small();
  const auto plan = place(program_policy(command, limits), asked.input());
  return plan ? "followed: " + plan->reason : plan.failure().message;
}

bool says(const std::string& text, const std::string& part) {
  INFO(text);
  const bool found = text.find(part) != std::string::npos;
  CHECK(found);
  return found;
}

std::string echo(const std::string& answer) { return "cat > /dev/null; echo '" + answer + "'"; }

constexpr const char* good_map = "[[[0],[0],[1],[1],[2],[2],[3],[3]],[[0],[0],[1],[1],[2],[2],[3],[3,0]]]";

}  // namespace

TEST_CASE("a program's map is followed, with its reason") {
  says(verdict(echo(std::string(R"({"map":)") + good_map + R"(,"reason":"because"})")), "followed: because");
  says(verdict(echo(std::string(R"({"map":)") + good_map + "}")), "followed: no reason given");
  says(verdict("printf '%s' '{\"map\":" + std::string(good_map) + "}'"), "followed");  // no newline, question unread
}

TEST_CASE("a bad program is refused with a sentence that says what was bad") {
  says(verdict("cat > /dev/null"), "the answer is empty");
  says(verdict("echo"), "the answer is empty");
  says(verdict(echo("no idea")), "is not JSON");
  says(verdict(echo("[1, 2]")), "not a JSON object");
  says(verdict(echo(R"({"map": [[[0]]]})")), "must be a list of 2 layers");
  says(verdict(echo(R"({"map": [[[0]], []]})")), "layer 0 must be a list of 8 experts, and has 1");
  says(verdict(echo(R"({"map":[[[0],[0],[1],[1],[2],[2],[3],[3]],[[0],[0],[1],[1],[2],[2],[3],[99]]]})")),
       "layer 1, expert 7 is on device 99, which does not exist");
  says(verdict(echo(R"({"map":[[[0],[0],[1],[1],[2],[2],[3],[3]],[[0],[0],[1],[1],[2],[2],[3],[-1]]]})")),
       "layer 1, expert 7 names '-1'");
  says(verdict(echo(R"({"map":[[[0],[0],[1],[1],[2],[2],[3],[3]],[[0],[0],[1],[1],[2],[2],[3],[NaN]]]})")),
       "is not JSON");
  says(verdict(echo(R"({"map":[[[0],[0],[1],[1],[2],[2],[3],[3]],[[0],[0],[1],[1],[2],[2],[3],[1.5]]]})")),
       "layer 1, expert 7 names '1.5'");
  says(verdict(echo(R"({"map":[[[0],[0],[0],[0],[2],[2],[3],[3]],[[0],[0],[1],[1],[2],[2],[3],[3]]]})")),
       "layer 0, expert 3 exceeds the 3 slots of device 0");
  says(verdict(echo(R"({"map":[[[],[0],[1],[1],[2],[2],[3],[3]],[[0],[0],[1],[1],[2],[2],[3],[3]]]})")),
       "layer 0, expert 0 has no replica");
  says(verdict(echo(R"({"error": "no load to speak of"})")), "it says: no load to speak of");
}

TEST_CASE("a program that fails is refused with how it failed") {
  says(verdict("echo 'a line of reasons' >&2; exit 3"), "it ended with exit code 3; its last words: a line of reasons");
  says(verdict("kill -SEGV $$"), "it was killed by a signal: Segmentation fault");
  says(verdict("/no/such/program"), "exit code 127");
  says(verdict("sleep 1000", {50, 1000}), "it did not answer within 50 ms");
  says(verdict("exec >&- 2>&-; sleep 1000", {50, 1000}), "it closed its output without an answer");
  says(verdict("head -c 100000000 /dev/zero | tr '\\0' x"), "it wrote more than 16777216 bytes");
  says(verdict("yes '{}' | head -c 100000000"), "the answer has no \"map\"");
  says(verdict("yes '[' | head -c 3000000 | tr -d '\\n'"), "nested too deeply");
}

TEST_CASE("what a program started ends with it") {
  const auto path = std::filesystem::temp_directory_path() / ("troupe_policy_" + std::to_string(getpid()));
  verdict("sleep 1000 & echo $! > " + path.string() + "; echo started; wait");
  std::ifstream in(path);
  pid_t child = 0;
  in >> child;
  REQUIRE(child > 0);
  // Killed by now; the system takes a moment to say so.
  const auto gone = [&] {
    std::ifstream stat("/proc/" + std::to_string(child) + "/stat");
    const std::string text(std::istreambuf_iterator<char>(stat), {});
    return text.empty() || text.find(") Z") != std::string::npos;
  };
  for (int i = 0; i < 3000 && !gone(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const bool ended = gone();
  CHECK(ended);
  std::filesystem::remove(path);
}

TEST_CASE("after a bad plan the old placement stays in force, and the next good one is followed") {
  const auto asked = small();
  int calls = 0;
  const placement_policy flaky = [&](const placement_input& input) -> result<placement_proposal> {
    if (calls++ == 0) return program_policy("exit 1", {patient_ms, 1000})(input);
    return place_round_robin(input);
  };
  const auto judged = evaluate("flaky", flaky, asked.load, asked.topology, {});
  REQUIRE(judged);
  REQUIRE(judged->plans.size() == 2);
  CHECK(judged->plans[0].failure.find("exit code 1") != std::string::npos);
  CHECK(judged->plans[0].move_bytes == 0);
  CHECK(judged->plans[0].balance_mean > 0);
  CHECK(judged->plans[1].failure.empty());
  CHECK(judged->plans[1].move_bytes > 0);
  CHECK(summarise(*judged).failures == 1);
}

TEST_CASE("the example in C++ gives valid plans") {
  says(verdict(TROUPE_BINARY_DIR "/bin/example_policy"), "followed: a snake over the devices");
}

TEST_CASE("the example in Python gives valid plans") {
  if (!run_program("python3 -c 'print(1)'", "", {patient_ms, 1000})) {
    MESSAGE("left out: there is no python3");
    return;
  }
  says(verdict("python3 " TROUPE_SOURCE_DIR "/examples/policy/my_policy.py"), "followed: the mean of 3 windows");
}

TEST_CASE("the question is one line of JSON that says everything there is to know") {
  auto asked = small();
  asked.load.windows[2].pairs = {{1, 2, 3, 40}};
  asked.liveness.live = {true, true, true, false};
  const auto line = to_json_line(asked.input());
  CHECK(line.find('\n') == std::string::npos);
  for (const char* part :
       {R"("version":1)", R"("layers":2)", R"("experts":8)", R"("pairs":[[1,2,3,40]])", R"("source_rows":[[[)",
        R"("live":false)", R"("move_bytes_max":null)", R"("current":[[[0,1],)", R"("slots":3)"})
    says(line, part);
}

TEST_CASE("answers of random bytes give sentences and never a crash") {
  const std::string good = std::string(R"({"map":)") + good_map + R"(,"reason":"because"})";
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    CAPTURE(seed);
    seeded_random random(seed);
    auto answer = good;
    for (uint32_t i = 0; i <= random.below(4); ++i) {
      const auto at = random.below(static_cast<uint32_t>(answer.size()));
      if (random.below(3) == 0)
        answer.erase(at, 1 + random.below(20));
      else
        answer[at] = static_cast<char>(random.below(256));
      if (answer.empty()) answer = "{";
    }
    const auto parsed = parse_answer(answer, 2, 8);
    if (!parsed) CHECK_FALSE(parsed.failure().message.empty());
  }
}

}  // namespace troupe
