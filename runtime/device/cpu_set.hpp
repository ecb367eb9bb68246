// Which CPUs a process may use, and which of them its compute threads stay on.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace troupe {

// The CPUs that this process may run on (affinity mask, which cpusets and `taskset` set), ascending; at most as many
// as its control group's quota pays for. Empty where the system does not tell. Call before a thread is pinned:
// a pinned thread sees its own CPU only.
std::vector<int> allowed_cpus();

// One CPU for each of a node's compute threads, or none: threads are left to the scheduler where the compute threads
// of all `nodes`, which may share the machine, do not get a CPU each. Nodes take theirs in the order of their number.
std::vector<int> cpus_of_node(std::span<const int> allowed, uint32_t node, uint32_t nodes, uint32_t threads);

// Whether the compute threads of `nodes` on this machine leave no CPU to anything else. False where nothing is known.
bool compute_takes_all(std::span<const int> allowed, uint32_t nodes, uint32_t threads);

// Keeps the calling thread on `cpus[index]`; does nothing where there is no such entry or the system refuses.
void pin_this_thread(std::span<const int> cpus, size_t index);

}  // namespace troupe
