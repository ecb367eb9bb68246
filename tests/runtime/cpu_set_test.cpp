#include "runtime/device/cpu_set.hpp"

#include <doctest/doctest.h>
#include <sched.h>

#include <thread>

namespace troupe {
namespace {

using cpus = std::vector<int>;

TEST_CASE("each node of a machine takes CPUs of its own, in the order of the nodes") {
  const cpus allowed{2, 3, 6, 7};
  CHECK(cpus_of_node(allowed, 0, 2, 2) == cpus{2, 3});
  CHECK(cpus_of_node(allowed, 1, 2, 2) == cpus{6, 7});
  CHECK(cpus_of_node(allowed, 2, 3, 1) == cpus{6});
}

TEST_CASE("threads are left to the scheduler where there are more of them than CPUs") {
  const cpus allowed{0, 1, 2, 3};
  CHECK(cpus_of_node(allowed, 0, 1, 5).empty());
  CHECK(cpus_of_node(allowed, 0, 3, 2).empty());
  CHECK(cpus_of_node(allowed, 4, 4, 1).empty());
  CHECK(cpus_of_node({}, 0, 1, 1).empty());
  CHECK(cpus_of_node(allowed, 0, 256, UINT32_MAX).empty());
}

TEST_CASE("a pinned thread may run on its CPU only, and others keep theirs") {
  const cpus allowed = allowed_cpus();
  if (allowed.empty()) {
    MESSAGE("skipped: the system does not tell which CPUs may be used");
    return;
  }
  cpus seen;
  std::thread([&] {
    pin_this_thread(allowed, allowed.size() - 1);
    seen = allowed_cpus();
  }).join();
  CHECK(seen == cpus{allowed.back()});
  CHECK(allowed_cpus() == allowed);
}

TEST_CASE("a thread without a CPU of its own stays where it may be") {
  const cpus allowed = allowed_cpus();
  cpus seen;
  std::thread([&] {
    pin_this_thread({}, 0);
    pin_this_thread(allowed, allowed.size());
    seen = allowed_cpus();
  }).join();
  CHECK(seen == allowed);
}

}  // namespace
TEST_CASE("it is known whether compute threads leave a CPU to anything else") {
  const cpus allowed{0, 1, 2, 3};
  CHECK(compute_takes_all(allowed, 4, 1));
  CHECK(compute_takes_all(allowed, 2, 3));
  CHECK(!compute_takes_all(allowed, 3, 1));
  CHECK(!compute_takes_all({}, 4, 1));
}

}  // namespace troupe
