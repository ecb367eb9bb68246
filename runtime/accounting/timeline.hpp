// A node's timeline as Chrome trace events, which Perfetto and chrome://tracing open.
//
// Every stage of every micro-batch on the node's device, every transfer as a slice and a flow from send to
// delivery, and every wait of the device with its reason. Recording copies a small struct into a list;
// writing it out takes long, so `flush` runs on a thread of its own (live) or at the end (simulation). Any
// thread may record.
//
// A file holds one node's events, one a line; `join_timelines` puts those of several nodes into one. Times
// are microseconds of the host's steady clock (or of virtual time), so nodes of one host fit together.
#pragma once

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/device/stage.hpp"
#include "runtime/error.hpp"
#include "runtime/memory/short_lock.hpp"
#include "runtime/wire/micro_batch.hpp"

namespace troupe {

class timeline {
 public:
  // Opens the file, behind what it holds already (an earlier incarnation of the node). With `background` a thread
  // flushes five times a second. Fails: unavailable (the file cannot be written).
  static result<std::unique_ptr<timeline>> open(const std::filesystem::path& file, uint16_t node, bool background);
  // Flushes and closes.
  ~timeline();
  timeline(const timeline&) = delete;
  timeline& operator=(const timeline&) = delete;

  void ran(const stage_label& what, const stage_time& when);
  void waited(const stage_label& what, uint64_t begin_ns, uint64_t end_ns, uint64_t exposed_ns, uint64_t mailbox_ns);
  void delivered(const micro_batch& message, uint16_t node);

  void flush();
  uint64_t dropped() const;  // events beyond `events_max` between two flushes

 private:
  struct entry {
    enum class type : uint8_t { stage, wait, transfer } what{};
    stage_label label;
    uint64_t begin_ns = 0;
    uint64_t end_ns = 0;
    uint64_t bytes = 0;       // transfer
    uint64_t exposed_ns = 0;  // wait
    uint64_t mailbox_ns = 0;  // wait
    uint32_t dispatch_id = 0;
    uint16_t from = 0;  // transfer: node and slot of the sender, node of the addressee
    uint16_t from_slot = 0;
    uint16_t to = 0;
    message_kind kind{};
  };
  // A flush comes five times a second; more events than this in between are dropped and counted.
  static constexpr size_t events_max = 1U << 18U;

  timeline(std::FILE* file, uint16_t node);
  void record(const entry& one);
  void write(const entry& one);
  void name_tracks(uint16_t node);
  void run();

  std::FILE* file_;
  const uint16_t node_;
  mutable short_lock lock_;
  std::vector<entry> gathered_;
  std::vector<entry> writing_;  // the flusher's
  uint64_t dropped_ = 0;
  std::vector<bool> peers_named_;
  std::mutex flush_mutex_;
  std::atomic<bool> ending_{false};
  std::thread flusher_;
};

// Joins finished timelines of several nodes into one file and removes the parts. Missing parts are left
// out. Fails: unavailable.
result<void> join_timelines(const std::vector<std::filesystem::path>& parts, const std::filesystem::path& into);

}  // namespace troupe
