// The device seam: `submit(task)`, then a completion.
//
// A device runs one task at a time with all its threads. Which kind of ready stage it takes next is the
// schedule's order of preference. For routed experts it gathers: waiting rows of one layer, from every source shard
// and, where they are few, every micro-batch, become one grouped launch in which each expert's weights are read once
// (`device_queue`). Row invariance makes that safe. `submit` may be called from any thread and never blocks;
// completions are called on the device's thread (live) or at their virtual time (modelled) and only send messages. A
// live device may run the actors that get them (`between_tasks`).
//
// Implementations: `cpu_device` (threads), `modelled_device` (a cost model in virtual time, with the
// real arithmetic), and the skeleton of a CUDA device.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/accounting/step_account.hpp"
#include "runtime/device/stage.hpp"
#include "runtime/device/worker_team.hpp"
#include "runtime/wire/micro_batch.hpp"

namespace troupe {

struct expert_weights;

// What a task is expected to cost, for the cost model.
struct task_cost {
  double flops = 0;
  double bytes = 0;  // weights and cache read
};

// One stage of a micro-batch. The submitter keeps it alive until `completed` has been called.
class stage_task {
 public:
  virtual ~stage_task() = default;
  virtual void run(worker_team& team) = 0;
  virtual void completed(const stage_time& when) = 0;
  virtual task_cost cost() const = 0;
  virtual stage_label label() const = 0;
};

class dispatch_work;

class dispatch_listener {
 public:
  virtual ~dispatch_listener() = default;
  virtual void completed(dispatch_work& work) = 0;
};

// One dispatch at a host's device: its rows, the room for its answer, and how many of its experts
// have not finished. Owned by the expert host; the device reads and writes it until `completed`.
class dispatch_work {
 public:
  micro_batch request;
  micro_batch answer;           // payload allocated and entries echoed before the first submit
  std::vector<uint32_t> order;  // pair indices, grouped by expert
  uint32_t experts = 0;         // that it asks, each in one task; set before the first submit
  uint32_t experts_left = 0;    // device's thread only, after submission
  uint32_t experts_queued = 0;  // the device's queue counts the tasks that came
  uint64_t compute_ns = 0;      // of the launches that its rows were part of
  uint64_t computed_until_ns = 0;
  bool bad_output = false;  // an expert gave NaN or infinity
  dispatch_listener* listener = nullptr;
};

// The rows of one dispatch for one expert: order[begin, end) of `work`.
struct expert_task {
  const expert_weights* weights = nullptr;
  dispatch_work* work = nullptr;
  uint32_t layer = 0;
  uint32_t expert = 0;
  uint32_t begin = 0;
  uint32_t end = 0;
};

struct device_statistics {
  uint64_t stages = 0;
  uint64_t expert_launches = 0;  // grouped launches
  uint64_t weight_passes = 0;    // expert weights read: one for each expert of each launch
  uint64_t expert_rows = 0;      // (token, expert) products
  uint64_t busy_ns = 0;
};

class device {
 public:
  virtual ~device() = default;

  virtual void submit(stage_task& task) = 0;
  virtual void submit(const expert_task& task) = 0;

  // After this no task runs and no completion is called; what waits is dropped.
  virtual void stop() = 0;

  virtual device_statistics statistics() const = 0;
  // What ran and what was waited for; actors add what the wire delivered to them.
  virtual step_account& account() = 0;
  virtual std::string description() const = 0;  // "cpu, 1 thread, f32 (avx512)"
  virtual const kernels::compute& math() const = 0;
};

// Runs a grouped launch; returns the number of experts whose weights were read.
// Requires: `group` as `device_queue::take` gives it.
uint32_t run_expert_group(const kernels::compute& math, std::vector<expert_task>& group, worker_team& team);

// What a grouped launch is. Requires: as for `run_expert_group`.
stage_label label_of(const std::vector<expert_task>& group);

// Counts down each work of the group and tells the listeners of those that are done.
void complete_expert_group(const std::vector<expert_task>& group, const stage_time& when);

// What a grouped launch is expected to cost.
task_cost expert_group_cost(const std::vector<expert_task>& group);

}  // namespace troupe
