// A node for the tests of the UCX wire that need another process: `wire_peer NODE INCARNATION TRANSPORTS`.
//
// Prints its address, then echoes what arrives at slot 1 to the sender's slot 1, and swallows what
// arrives at slot 2. Ends when its parent does.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "runtime/wire/ucx_wire.hpp"

int main(int argc, char** argv) {
  using namespace troupe;
  if (argc != 4) return 2;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  ucx_wire_options options;
  options.node = static_cast<uint16_t>(std::atoi(argv[1]));
  options.incarnation = static_cast<uint32_t>(std::atoi(argv[2]));
  options.transports = argv[3];
  auto made = ucx_wire::make(options);
  if (!made) {
    std::fprintf(stderr, "%s\n", made.failure().message.c_str());
    return 1;
  }
  auto& node = **made;
  node.attach(1, [&](micro_batch message) {
    const endpoint back{message.header.source_node, 1, message.header.source_incarnation};
    (void)node.send(back, std::move(message));
  });
  node.attach(2, [](micro_batch) {});
  std::printf("%s\n", node.listen_address().c_str());
  std::fflush(stdout);
  for (;;) pause();
}
