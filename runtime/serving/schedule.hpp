// A schedule: how a shard's batch is cut into micro-batches that take turns, as data.
//
// Read from YAML (`config/schedules/`, docs/schedules.md); a new one needs no recompilation. It says how
// many micro-batches a shard has, whether attention is one stage of the device or two, and in which
// order a device prefers stages that are ready. With several choices the shard picks one by what it
// measures (`schedule_chooser`). Plain data; the head reads it and hands its text to every node.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/device/stage.hpp"
#include "runtime/error.hpp"

namespace troupe {

// One way to cut a batch.
struct schedule_choice {
  uint32_t micro_batches = 2;
  bool split_attention = false;  // two stages: attn_0, attn_1

  bool operator==(const schedule_choice&) const = default;
};

struct schedule {
  static constexpr uint32_t micro_batches_limit = 16;

  std::string name = "default";
  std::vector<schedule_choice> choices{schedule_choice{}};  // several: chosen while serving
  stage_ranks ranks = default_ranks;
  // For several choices. A choice is measured over `probe_steps` steps of each micro-batch and kept until
  // another is faster by more than `hysteresis_percent`; `reprobe_steps` steps later all are measured
  // again.
  uint32_t probe_steps = 8;
  uint32_t reprobe_steps = 4096;
  uint32_t hysteresis_percent = 3;

  uint32_t micro_batches_max() const;
};

// A fixed number of micro-batches with whole attention, for programs that need no file.
schedule taking_turns(uint32_t micro_batches);

// Reads a schedule's YAML. Fails: malformed, invalid_argument (unknown key, impossible schedule): the
// sentence says what and why.
result<schedule> parse_schedule(std::string_view yaml);
// The same schedule as YAML that `parse_schedule` reads.
std::string to_yaml(const schedule& from);

// "serial", "auto", ...: a file of that name in `directory` or among those built in; or a path to a
// YAML file, relative to `directory`.
// Fails: not_found (lists the names there are), and as `parse_schedule`, naming the file.
result<schedule> find_schedule(const std::string& name_or_path, const std::filesystem::path& directory);

// What is built in: name and YAML text of each file of config/schedules/.
struct shipped_schedule {
  std::string_view name;
  std::string_view yaml;
};
const std::vector<shipped_schedule>& shipped_schedules();

}  // namespace troupe
