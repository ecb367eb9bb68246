// The real command with real processes: experts move, processes join and drain, and streams do not notice.
#include <doctest/doctest.h>

#include <atomic>
#include <set>

#include "tests/live/served_streams.hpp"

namespace troupe::testing {

namespace {

constexpr int tokens = 96;

const std::vector<nlohmann::json>& undisturbed() {
  static const std::vector<nlohmann::json> outcomes = [] {
    const served_cluster cluster(1);
    return run_streams(cluster, tokens);
  }();
  return outcomes;
}

void require_undisturbed(const std::vector<nlohmann::json>& outcomes) {
  for (size_t i = 0; i < outcomes.size(); ++i) {
    REQUIRE_MESSAGE(undisturbed()[i].contains("text"), undisturbed()[i].dump());
    REQUIRE(outcomes[i] == undisturbed()[i]);
  }
}

nlohmann::json rebalance(const served_cluster& cluster) {
  const auto document = cluster.cluster();
  return document.contains("rebalance") ? document["rebalance"] : nlohmann::json::object();
}

uint64_t counter(const nlohmann::json& document, const char* name) {
  return document.contains(name) ? document[name].get<uint64_t>() : 0;
}

// A process started beside those of the head.
class joined_process {
 public:
  joined_process(const served_cluster& cluster, const std::string& log) {
    process_ = fork();
    if (process_ != 0) return;
    const int file = open(log.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
    dup2(file, 1);
    dup2(file, 2);
    execl(TROUPE_BINARY_DIR "/bin/troupe", "troupe", "node", "--join", cluster.join_address().c_str(), nullptr);
    _exit(127);
  }
  joined_process(joined_process&& other) noexcept : process_(std::exchange(other.process_, 0)) {}
  joined_process& operator=(joined_process&& other) noexcept {
    std::swap(process_, other.process_);
    return *this;
  }
  ~joined_process() {
    if (process_ <= 0) return;
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }

  pid_t process() const { return process_; }
  // The exit code once it has ended of its own accord; -1 when it does not within a minute.
  int exit_code() {
    int status = -1;
    served_cluster::wait_until([&] { return waitpid(process_, &status, WNOHANG) == process_; });
    if (status == -1) return -1;
    process_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t process_ = 0;
};

// The number of the live node that is this process, with experts; -1 when it does not come.
int node_with_experts(const served_cluster& cluster, pid_t process) {
  int found = -1;
  served_cluster::wait_until([&] {
    const auto document = cluster.cluster();
    if (!document.contains("nodes")) return false;
    for (const auto& node : document["nodes"])
      if (node["process"] == process && node["state"] == "live" && node["counters"]["replicas"] > 0)
        found = node["node"];
    return found >= 0;
  });
  return found;
}

int drain(const served_cluster& cluster, int node) {
  const auto command = std::string(TROUPE_BINARY_DIR "/bin/troupe --log off drain --join ") + cluster.join_address() +
                       " --node " + std::to_string(node) + " > /dev/null";
  return std::system(command.c_str());
}

// A process joins, and one of the others drains, with sixteen streams running all the time.
void join_and_drain(int rounds) {
  const temporary_directory directory;
  const auto log = (directory.path() / "nodes.log").string();
  served_cluster cluster(4, "nodes_max: 6\nselection: weighted\nrebalance: {policy: incremental, period_ms: 2000}\n");
  REQUIRE_MESSAGE(cluster.port() != 0, cluster.log());
  std::atomic<bool> through{false};
  std::atomic<int> runs{0};
  std::vector<std::vector<nlohmann::json>> outcomes;
  std::thread load([&] {
    while (!through) {
      outcomes.push_back(run_streams(cluster, tokens));
      ++runs;
    }
  });
  std::map<int, joined_process> joined;
  std::set<int> workers{1, 2, 3};
  bool fine = true;
  for (int round = 0; round < rounds && fine; ++round) {
    joined_process started(cluster, log);
    const int node = node_with_experts(cluster, started.process());
    fine = node > 0;
    if (!fine) break;
    const int oldest = *std::next(workers.begin(), round % static_cast<int>(workers.size()));
    joined.insert_or_assign(node, std::move(started));
    workers.insert(node);
    fine = drain(cluster, oldest) == 0;
    if (!fine) break;
    if (const auto own = joined.find(oldest); own != joined.end()) {
      fine = own->second.exit_code() == 0;
      joined.erase(own);
    } else {
      fine = served_cluster::wait_until([&] {
        return cluster.log().find("the process of node " + std::to_string(oldest) +
                                  " has ended, drained (exit code 0)") != std::string::npos;
      });
    }
    workers.erase(oldest);
  }
  const int before = runs;
  served_cluster::wait_until([&] { return runs >= before + 1; });
  through = true;
  load.join();
  CHECK_MESSAGE(fine, cluster.log());
  for (const auto& one : outcomes) require_undisturbed(one);
  const auto document = cluster.cluster();
  MESSAGE(rounds << " joins and drains, " << runs.load() << " times " << streams << " streams, "
                 << document["requests"]["resumed"] << " times one moved to another shard, "
                 << document["rebalance"]["moves_done"] << " replicas moved");
  CHECK(document["requests"]["failed"] == 0);
  CHECK(document["nodes_lost"] == 0);
}

}  // namespace

TEST_CASE("experts move between live processes, and streams are equal to those of one process") {
  served_cluster cluster(4,
                         "selection: weighted\n"
                         "rebalance: {policy: eplb_distinct, window_ms: 500, period_ms: 500, decay: 0, "
                         "co_activation: true}\n");
  REQUIRE_MESSAGE(cluster.port() != 0, cluster.log());
  for (int round = 0; round < 12; ++round) {
    require_undisturbed(run_streams(cluster, tokens));
    if (round >= 3 && counter(rebalance(cluster), "moves_done") >= 100) break;
  }
  const auto document = cluster.cluster();
  MESSAGE(document["rebalance"]["moves_done"] << " replicas moved in " << document["rebalance"]["plans"] << " plans");
  CHECK(document["rebalance"]["moves_done"] >= 100);
  CHECK(document["rebalance"]["moves_failed"] == 0);
  uint64_t rows = 0;
  for (const auto& node : document["nodes"]) {
    CHECK(node["counters"]["dispatches_refused"] == 0);
    rows += node["counters"]["rows_received"].get<uint64_t>();
  }
  CHECK(rows > 0);
  // What was recorded meanwhile is a load that `troupe place` reads.
  const auto load = http_call(cluster.port(), "GET", "/load");
  REQUIRE(load);
  CHECK(load->body.starts_with("window,source,layer,expert,rows\n"));
  CHECK(load->body.find("\nwindow,layer,a,b,tokens\n") != std::string::npos);
  std::ofstream("recorded_load.csv") << load->body;
  const auto place = std::string(TROUPE_BINARY_DIR "/bin/troupe --log off place --topology ") + TROUPE_SOURCE_DIR +
                     "/config/topologies/this_machine.yaml --load recorded_load.csv --policy eplb > /dev/null";
  CHECK(std::system(place.c_str()) == 0);
  std::filesystem::remove("recorded_load.csv");
}

TEST_CASE("a policy program may do what it likes: each failure is a sentence, and streams do not notice") {
  const temporary_directory directory;
  const auto script = directory.path() / "policy.sh";
  // Each call does another thing; the calls count themselves.
  std::ofstream(script) << "calls=" << (directory.path() / "calls").string() << R"(
echo x >> $calls
case $(wc -l < $calls) in
  1) exit 3;;
  2) kill -SEGV $$;;
  3) echo '{}';;
  4) echo '{"map": [[[NaN]]]}';;
  5) echo '{"map": [[[99]]]}';;
  6) head -c 100000000 /dev/zero | tr '\0' x;;
  *) sleep 100;;
esac
)";
  served_cluster cluster(4, "rebalance: {policy: 'program:sh " + script.string() +
                                "', window_ms: 200, period_ms: 200, policy_timeout_ms: 1000}\n");
  REQUIRE_MESSAGE(cluster.port() != 0, cluster.log());
  for (int round = 0; round < 20 && counter(rebalance(cluster), "plans_refused") < 7; ++round)
    require_undisturbed(run_streams(cluster, tokens));
  CHECK(counter(rebalance(cluster), "plans_refused") >= 7);
  CHECK(counter(rebalance(cluster), "moves_done") == 0);
  CHECK(cluster.cluster()["epoch"] == 1);
  const auto log = cluster.log();
  for (const std::string sentence : {"it ended with exit code 3", "Segmentation fault", "map",
                                     "without ending its line", "it did not answer within 1000 ms"}) {
    CAPTURE(sentence);
    CHECK_MESSAGE(log.find(sentence) != std::string::npos, log);
  }
}

TEST_CASE("processes join and drain under load: no request is lost and no token changes, 2 rounds") {
  join_and_drain(2);
}

TEST_CASE("processes join and drain under load: no request is lost and no token changes, 20 rounds" *
          doctest::test_suite("full")) {
  join_and_drain(20);
}

}  // namespace troupe::testing
