// A wire's parts and its progress thread.
//
// Internal to `ucx_wire`. The thread makes UCX's objects and runs them until nothing is under way; other
// threads reach it through the submission stack and a short list of commands. Who calls UCX, or touches what the
// progress thread owns, has the turn: that thread, but for the turns that others take in between (`ucx_turn.cpp`).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/function_ref.hpp"
#include "runtime/wire/slot_table.hpp"
#include "runtime/wire/ucx_counters.hpp"
#include "runtime/wire/ucx_link.hpp"
#include "runtime/wire/ucx_peer.hpp"
#include "runtime/wire/ucx_receiver.hpp"
#include "runtime/wire/ucx_sender.hpp"
#include "runtime/wire/ucx_wire.hpp"
#include "runtime/wire/ucx_worker.hpp"

namespace troupe {

class ucx_wire::engine {
 public:
  engine(ucx_wire_options options, const socket_address& listen);
  ~engine();

  // Starts the thread; returns when it listens.
  result<void> start();

  // Any thread.
  const ucx_wire_options& options() const { return options_; }
  slot_table& slots() { return slots_; }
  const ucx_counters& counters() const { return counters_; }
  uint64_t bytes_in_flight() const;
  const std::string& listen_address() const { return listen_address_; }
  void connect(uint16_t node, uint32_t incarnation, const socket_address& address);
  void disconnect(uint16_t node);
  void cut(uint16_t node);
  void refuse(uint16_t node, uint32_t incarnation);
  void settle();
  result<void> send(endpoint to, micro_batch&& message);
  result<void> deliver_here(endpoint to, micro_batch&& message);
  bool begin_turn();
  void progress();
  void wait(function_ref<bool()> ready, uint64_t until_ns);
  void end_wait();
  void end_turn();

 private:
  struct command {
    enum class verb : uint8_t { connect, disconnect, cut, refuse, settle } what{};
    uint16_t node = 0;
    uint32_t incarnation = 0;
    socket_address address;
    std::shared_ptr<std::promise<void>> settled;
  };

  void post(command what);

  // The progress thread, or who has its turn.
  void run(std::promise<result<void>> started);
  result<void> open();
  result<void> start_links(const socket_address& listen);
  void loop();
  bool step(uint64_t now_ns);
  bool fetch_bulk(bool progressed);
  void sleep();
  uint64_t sleep_max_ns() const;
  bool may_sleep();
  bool obey_commands();
  void close();
  bool finish(uint32_t timeout_ms, bool everything);
  void check_hearing();
  uint64_t unfinished() const;

  const ucx_wire_options options_;
  const socket_address listen_;
  std::string listen_address_;
  ucx_counters counters_;
  slot_table slots_;
  peer_table peers_;
  std::array<std::atomic<uint64_t>, message_class_count> own_sequences_{};  // of messages to this node

  // Made before the thread, used by both.
  std::unique_ptr<ucx_sender> sender_;
  // Made by the thread. `worker_` outlives it, for `wake`.
  std::unique_ptr<ucx_worker> worker_;
  std::unique_ptr<ucx_receiver> receiver_;
  std::unique_ptr<ucx_links> links_;
  uint64_t urgent_seen_ = 0;  // dispatches and combines, both ways
  uint64_t urgent_ns_ = 0;    // when bulk that was waiting saw the last of them
  uint64_t fetched_ns_ = 0;   // when a fragment of bulk was last fetched

  std::mutex turn_;
  std::atomic<std::thread::id> whose_turn_{};
  std::atomic<bool> waits_{false};  // a thread in its turn, in `wait`
  uint64_t wakes_at_ns_ = 0;        // the progress thread, if nothing wakes it; 0 while it runs

  std::mutex commands_mutex_;
  std::vector<command> commands_;
  std::atomic<bool> has_commands_{false};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace troupe
