// The real command with real processes: streams survive the death or silence of any worker.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <atomic>
#include <map>

#include "apps/cluster/simulated_cluster.hpp"
#include "tests/live/served_streams.hpp"

namespace troupe::testing {

namespace {

// Disturbs each worker in turn, `rounds` times, with 16 streams under way.
void disturb(int signal, int rounds) {
  constexpr int tokens = 128;
  served_cluster cluster(4);
  REQUIRE_MESSAGE(cluster.port() != 0, cluster.log());
  const auto undisturbed = run_streams(cluster, tokens);
  for (const auto& one : undisturbed) REQUIRE_MESSAGE(one.contains("text"), one.dump());
  for (int round = 0; round < rounds; ++round)
    for (int node = 1; node <= 3; ++node) {
      CAPTURE(round);
      CAPTURE(node);
      REQUIRE(cluster.wait_for_live_nodes(4));
      const pid_t victim = cluster.node_process(node);
      REQUIRE(victim != 0);
      const uint64_t before = completion_tokens(cluster);
      // Strikes somewhere in the middle: after a part of the tokens that grows from round to round.
      const uint64_t moment =
          before + static_cast<uint64_t>(streams * tokens) * static_cast<uint64_t>(1 + round % 8) / 10;
      const auto disturbed = run_streams(cluster, tokens, [&] {
        served_cluster::wait_until([&] { return completion_tokens(cluster) >= moment; });
        kill(victim, signal);
      });
      for (size_t i = 0; i < disturbed.size(); ++i) REQUIRE(disturbed[i] == undisturbed[i]);
    }
  const auto requests = cluster.cluster()["requests"];
  CHECK(requests["failed"] == 0);
  CHECK(requests["resumed"] > 0);  // the blows fell where they should
}

}  // namespace

TEST_CASE("1, 2 and 4 processes, 3 with slow links and virtual time give equal texts and log-probabilities") {
  constexpr int tokens = 24;
  std::vector<nlohmann::json> first;
  for (const uint32_t nodes : {1U, 2U, 4U}) {
    CAPTURE(nodes);
    served_cluster cluster(nodes, std::string("profile: f32\nschedule: ") + (nodes == 2 ? "serial" : "dual_decode") +
                                      "\nthreads_per_node: " + std::to_string(nodes == 1 ? 2 : 1) +
                                      "\nredundant_replicas: " + std::to_string(nodes == 1 ? 0 : 1) + "\n");
    REQUIRE_MESSAGE(cluster.port() != 0, cluster.log());
    const auto outcomes = run_streams(cluster, tokens);
    for (const auto& one : outcomes) REQUIRE_MESSAGE(one.contains("text"), one.dump());
    if (first.empty()) first = outcomes;
    CHECK(outcomes == first);
  }
  {
    served_cluster cluster(3, "profile: f32\nlinks: [{latency_us: 300, bandwidth_mb_s: 50, jitter_us: 200}]\n");
    REQUIRE_MESSAGE(cluster.port() != 0, cluster.log());
    CHECK(cluster.log().find(", links shaped") != std::string::npos);
    CHECK(run_streams(cluster, tokens) == first);
  }

  const std::string model = TROUPE_SOURCE_DIR "/examples/tiny-moe";
  const auto words = tokenizer::load(model);
  REQUIRE(words);
  simulation_options options;
  options.settings.nodes = 4;
  simulated_cluster simulated(*simulated_model::load(model, kernels::compute::make(kernels::profile::f32)), options);
  REQUIRE(simulated.start());
  for (int i = 0; i < streams; ++i) {
    const auto asked = completion(i, tokens);
    generation_request request;
    request.prompt_ids = words->encode(asked["prompt"].get<std::string>());
    request.prompt_ids.insert(request.prompt_ids.begin(), words->bos().value());
    request.max_tokens = tokens;
    request.temperature = asked["temperature"].get<float>();
    request.seed = asked["seed"].get<uint64_t>();
    request.ignore_eos = true;
    simulated.submit(std::move(request));
  }
  REQUIRE(simulated.run_until([&] { return simulated.all_ended(); }, std::chrono::seconds(600)));
  for (size_t i = 0; i < streams; ++i) {
    const auto& stream = *simulated.streams()[i];
    CHECK(nlohmann::json(stream.logprobs) == first[i]["logprobs"]);
  }
}

TEST_CASE("kill -9 of each worker in turn changes no token of 16 streams") { disturb(SIGKILL, 1); }

TEST_CASE("SIGSTOP of each worker in turn changes no token of 16 streams") { disturb(SIGSTOP, 1); }

TEST_CASE("a head that was paused goes on: its own stall is not its nodes' silence") {
  constexpr int tokens = 48;
  served_cluster cluster(2);
  REQUIRE_MESSAGE(cluster.port() != 0, cluster.log());
  const auto undisturbed = run_streams(cluster, tokens);
  const auto disturbed = run_streams(cluster, tokens, [&] {
    kill(cluster.process(), SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(2000));
    kill(cluster.process(), SIGCONT);
  });
  for (size_t i = 0; i < disturbed.size(); ++i) REQUIRE(disturbed[i] == undisturbed[i]);
}

TEST_CASE("kill -9 of each worker in turn, 20 times" * doctest::test_suite("full")) { disturb(SIGKILL, 20); }

TEST_CASE("SIGSTOP of each worker in turn, 20 times" * doctest::test_suite("full")) { disturb(SIGSTOP, 20); }

TEST_CASE("processes of one machine keep the weights that all of them need once") {
  served_cluster cluster(3);
  REQUIRE_MESSAGE(cluster.port() != 0, cluster.log());
  REQUIRE(cluster.wait_for_live_nodes(3));
  std::vector<std::string> files;
  for (int node = 0; node < 3; ++node) {
    const auto directory = "/proc/" + std::to_string(cluster.node_process(node)) + "/fd";
    for (const auto& file : std::filesystem::directory_iterator(directory)) {
      struct stat status {};
      std::error_code gone;
      if (std::filesystem::read_symlink(file, gone).string().find("troupe-weights-") != std::string::npos &&
          stat(file.path().c_str(), &status) == 0)
        files.push_back(std::to_string(status.st_ino));
    }
  }
  if (files.empty())
    MESSAGE("skipped: shared memory has no huge pages here (Linux 6.1 and later)");
  else
    CHECK(files == std::vector<std::string>(3, files.front()));
}

TEST_CASE("no process is left behind, however the head ends") {
  for (const int signal : {SIGTERM, SIGKILL}) {
    CAPTURE(signal);
    served_cluster cluster(4);
    REQUIRE_MESSAGE(cluster.port() != 0, cluster.log());
    std::vector<pid_t> nodes;
    for (int node = 1; node <= 3; ++node) nodes.push_back(cluster.node_process(node));
    kill(nodes[1], SIGSTOP);  // not even a stopped one
    cluster.stop(signal);
    for (const pid_t node : nodes) CHECK(served_cluster::wait_until([&] { return kill(node, 0) != 0; }));
  }
}

TEST_CASE("a paused timeline records nothing, in any process, until it is told to go on") {
  const temporary_directory directory;
  const auto trace = directory.path() / "trace.json";
  served_cluster cluster(2, "", trace.string());
  REQUIRE_MESSAGE(cluster.port() != 0, cluster.log());
  const auto both_say = [&](const std::string& what) {
    return served_cluster::wait_until([&] {
      const auto said = cluster.log();
      return said.find("node 0: the timeline " + what) != std::string::npos &&
             said.find("node 1: the timeline " + what) != std::string::npos;
    });
  };
  kill(cluster.process(), SIGUSR2);
  REQUIRE_MESSAGE(both_say("is paused"), cluster.log());
  run_streams(cluster, 8);
  kill(cluster.process(), SIGUSR1);
  REQUIRE_MESSAGE(both_say("goes on"), cluster.log());
  run_streams(cluster, 8);
  cluster.stop(SIGTERM);
  std::ifstream events(trace);
  std::map<std::string, int> stages;  // by node
  std::string line;
  while (std::getline(events, line)) {
    if (line.find(R"("cat":"stage")") == std::string::npos) continue;
    const size_t node = line.find(R"("pid":)");
    ++stages[line.substr(node, line.find(',', node) - node)];
    CHECK_MESSAGE(line.find(R"("step":1,)") == std::string::npos, line);  // the first was while it was paused
  }
  CHECK(stages.size() == 2);
}

TEST_CASE("a client that goes away has its request cancelled and its blocks freed") {
  served_cluster cluster(2);
  REQUIRE_MESSAGE(cluster.port() != 0, cluster.log());
  {
    const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(cluster.port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    auto asked = completion(0, 900);
    asked["stream"] = true;
    const std::string body = asked.dump();
    const std::string request =
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: " +
        std::to_string(body.size()) + "\r\n\r\n" + body;
    REQUIRE(send(connection, request.data(), request.size(), MSG_NOSIGNAL) > 0);
    char part[512];
    REQUIRE(recv(connection, part, sizeof part, 0) > 0);
    close(connection);
  }
  CHECK(served_cluster::wait_until([&] { return cluster.cluster()["requests"]["cancelled"] == 1; }));
  CHECK(served_cluster::wait_until([&] {
    const auto document = cluster.cluster();
    for (const auto& node : document["nodes"])
      if (node["counters"]["kv_blocks_free"] != node["counters"]["kv_blocks"]) return false;
    return true;
  }));
}

namespace {

// Streams over slow links whose connections break, for so many seconds.
void soak(int seconds) {
  constexpr int tokens = 64;
  std::vector<nlohmann::json> undisturbed;
  {
    served_cluster alone(1, "redundant_replicas: 0\n");
    REQUIRE_MESSAGE(alone.port() != 0, alone.log());
    undisturbed = run_streams(alone, tokens);
    for (const auto& one : undisturbed) REQUIRE_MESSAGE(one.contains("text"), one.dump());
  }
  served_cluster cluster(3,
                         "fault_cut_ms: 150\ndispatch_deadline_ms: 300\nverdict_ms: 10000\n"
                         "links: [{latency_us: 200, bandwidth_mb_s: 500, jitter_us: 50}]\n");
  REQUIRE_MESSAGE(cluster.port() != 0, cluster.log());
  const auto counters = [&](const char* name) {
    uint64_t sum = 0;
    const auto document = cluster.cluster();
    for (const auto& node : document["nodes"]) sum += node["counters"][name].get<uint64_t>();
    return sum;
  };
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  uint64_t rounds = 0;
  uint64_t resident_early = 0;
  const auto resident_kib = [&] {
    uint64_t sum = 0;
    for (int node = 0; node < 3; ++node) {
      std::ifstream statm("/proc/" + std::to_string(cluster.node_process(node)) + "/statm");
      uint64_t all = 0, resident = 0;
      statm >> all >> resident;
      sum += resident * 4;
    }
    return sum;
  };
  while (std::chrono::steady_clock::now() < end) {
    const auto streamed = run_streams(cluster, tokens);
    for (size_t i = 0; i < streamed.size(); ++i) REQUIRE(streamed[i] == undisturbed[i]);
    ++rounds;
    if (resident_early == 0 && std::chrono::steady_clock::now() + std::chrono::seconds(seconds * 2 / 3) > end)
      resident_early = resident_kib();
  }
  MESSAGE(rounds << " rounds of " << streams << " streams in " << seconds << " s, " << counters("wire_reconnections")
                 << " reconnections, " << counters("dispatches_resent") << " dispatches resent, memory grew by "
                 << static_cast<int64_t>(resident_kib() - resident_early) / 1024 << " MiB in the last two thirds");
  CHECK(counters("wire_reconnections") > 0);
  CHECK(cluster.cluster()["requests"]["failed"] == 0);
  // Nothing is left behind: buffers and credits are back, and each pair of nodes has one connection.
  CHECK(served_cluster::wait_until([&] { return counters("buffers_in_use") == 0; }));
  CHECK(served_cluster::wait_until([&] { return counters("wire_bytes_in_flight") == 0; }));
  CHECK(served_cluster::wait_until([&] { return counters("wire_connections") == 3 * 2; }));
  if (seconds >= 300) CHECK(static_cast<int64_t>(resident_kib() - resident_early) < 64 * 1024);
}

}  // namespace

TEST_CASE("streams over slow links whose connections break equal those of one process") { soak(5); }

TEST_CASE("ten minutes over slow links whose connections break: streams are equal, nothing is lost or left behind" *
          doctest::test_suite("full")) {
  soak(600);
}

}  // namespace troupe::testing
