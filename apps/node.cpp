#include <caf/io/all.hpp>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "apps/cluster/head.hpp"
#include "apps/cluster/join.hpp"
#include "apps/commands.hpp"
#include "apps/process_signals.hpp"

namespace troupe {

namespace {

struct node_options {
  std::string join;
  int node = -1;
  std::string wire_host = "127.0.0.1";
  int patience_s = 10;
  std::string trace;
};

// How a node's life ended.
struct verdict {
  error reason;
  node_end how = node_end::failed;
};

// What is left to do when a node has ended; returns the exit code. A retired node joins again instead, as
// a new process image without the descriptors of the old one.
int conclude(const std::optional<verdict>& ended, char** arguments) {
  if (!ended) return 0;
  if (ended->how == node_end::released) {
    spdlog::info("{}", ended->reason.message);
    return 0;
  }
  if (ended->how == node_end::retired) {
    spdlog::warn("{}", ended->reason.message);
    close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
    execv("/proc/self/exe", arguments);
  }
  report(ended->reason);
  return ended->reason.code == errc::invalid_argument ? exit_refused : exit_failed;
}

// Bounds how long an actor system takes to end. CAF first writes out what its connections hold, and while
// the head's host cannot be reached that never ends.
class end_deadline {
 public:
  end_deadline() = default;
  ~end_deadline() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
  }
  end_deadline(const end_deadline&) = delete;
  end_deadline& operator=(const end_deadline&) = delete;

  // Calls `late`, which must end the process, unless this is destroyed in time. At most once.
  void arm(std::chrono::milliseconds patience, std::function<void()> late) {
    thread_ = std::thread([this, patience, late = std::move(late)] {
      std::unique_lock lock(mutex_);
      if (!changed_.wait_for(lock, patience, [this] { return ended_; })) late();
    });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread thread_;
};

class node_process {
 public:
  node_process(node_options options, char** arguments) : options_(std::move(options)), arguments_(arguments) {}

  // Serves until the node ends or a signal asks it to; nothing when it was a signal.
  result<std::optional<verdict>> run() {
    const process_signals signals;
    const auto address = parse_join_address(options_.join);
    if (!address) return address.failure();
    live_seams_options seams;
    seams.wire_host = options_.wire_host;
    seams.trace = options_.trace;
    seams.on_ended = [this](const error& reason, node_end how) {
      const std::lock_guard lock(mutex_);
      verdict_ = verdict{reason, how};
    };
    end_deadline deadline;  // of everything below
    // Before the actor system, so that its pools outlive every message.
    const auto parts = std::make_shared<live_seams>(std::move(seams));
    const auto config = make_system_config(true);
    caf::actor_system system(*config);
    parts->serve(system);
    auto coordinator = reach_coordinator(system, *address, options_.patience_s);
    if (!coordinator) return coordinator.failure();
    node_environment environment = describe_process(options_.node);
    environment.coordinator = caf::actor_cast<caf::strong_actor_ptr>(*coordinator);
    environment.seams = parts;
    auto actor = system.spawn([](node_actor::stateful_pointer<node_state> self,
                                 node_environment given) { return self->state.start(self, std::move(given)); },
                              std::move(environment));
    const auto ended = wait(signals, *parts);
    deadline.arm(end_patience, [this, ended] { _exit(conclude(ended, arguments_)); });
    parts->close();
    caf::anon_send_exit(actor, caf::exit_reason::kill);
    return ended;
  }

 private:
  std::optional<verdict> wait(const process_signals& signals, live_seams& parts) {
    for (;;) {
      const auto wish = signals.wait(std::chrono::milliseconds(50));
      if (wish == signal_wish::end) return std::nullopt;
      if (wish != signal_wish::none) parts.record_trace(wish == signal_wish::resume_trace);
      const std::lock_guard lock(mutex_);
      if (verdict_) return verdict_;
    }
  }

  static constexpr std::chrono::milliseconds end_patience{5000};

  node_options options_;
  char** arguments_;
  std::mutex mutex_;
  std::optional<verdict> verdict_;
};

int run_node(const node_options& options, char** arguments) {
  auto outcome = node_process(options, arguments).run();
  if (!outcome) return report(outcome.failure());
  return conclude(*outcome, arguments);
}

}  // namespace

void add_node(CLI::App& app, int& exit_code, char** arguments) {
  auto options = std::make_shared<node_options>();
  auto* command = app.add_subcommand("node", "Join a cluster as one more process, from this machine or another");
  command->add_option("--join", options->join, "HOST:PORT of the head, as `troupe serve` prints it")->required();
  command->add_option("--node", options->node, "Node number to take; default: any that is free")
      ->check(CLI::Range(0, 255));
  command->add_option("--wire-host", options->wire_host, "Address of this machine that other nodes reach its wire at")
      ->capture_default_str();
  command->add_option("--patience", options->patience_s, "Seconds to wait for the head")->capture_default_str();
  command->add_option("--trace", options->trace, "Append this node's timeline (Chrome trace events) to a file");
  command->footer(
      "The model directory must exist at the same path as on the head. The node loads its experts, serves,\n"
      "and joins again as a new incarnation if the head declared it dead. Wire and control traffic is in\n"
      "clear text: keep it on a private network.");
  command->callback([options, arguments, &exit_code] { exit_code = run_node(*options, arguments); });
}

}  // namespace troupe
