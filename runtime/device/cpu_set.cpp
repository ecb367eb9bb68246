#include "runtime/device/cpu_set.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

namespace troupe {

namespace {

// CPUs' worth of time that the control group may take; version 2's limit of the process's own group, else version 1's
// of the group that a container sees as its root. 0: no limit.
size_t quota_cpus() {
  double quota = 0;
  double period = 0;
  std::string group;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);)
    if (line.starts_with("0::")) group = line.substr(3);
  std::ifstream unified("/sys/fs/cgroup" + group + "/cpu.max");
  if (!(unified >> quota >> period)) {  // "max" is no number
    std::ifstream quota_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
    std::ifstream period_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
    if (!(quota_file >> quota) || !(period_file >> period)) return 0;
  }
  return quota > 0 && period > 0 ? static_cast<size_t>(std::ceil(quota / period)) : 0;
}

}  // namespace

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return {};
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  if (const size_t quota = quota_cpus(); quota > 0 && quota < cpus.size()) cpus.resize(quota);
  return cpus;
}

std::vector<int> cpus_of_node(std::span<const int> allowed, uint32_t node, uint32_t nodes, uint32_t threads) {
  if (std::max(uint64_t{nodes}, uint64_t{node} + 1) * threads > allowed.size()) return {};
  const auto own = allowed.subspan(size_t{node} * threads, threads);
  return {own.begin(), own.end()};
}

bool compute_takes_all(std::span<const int> allowed, uint32_t nodes, uint32_t threads) {
  return !allowed.empty() && allowed.size() <= size_t{nodes} * threads;
}

void pin_this_thread(std::span<const int> cpus, size_t index) {
  if (index >= cpus.size()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpus[index], &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

}  // namespace troupe
