// Names, choice of implementation, and the checks that stop a caller's mistake.
#include "kernels/profile.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>

#include "tests/kernels/fixtures.hpp"

using namespace troupe::testing;

namespace {

// Whether the call stops its process with a failed check. Runs in a child.
template <class Call>
bool stops(Call call) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);  // doctest would report the abort as a failed test
    const int nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, STDERR_FILENO);
    call();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

}  // namespace

TEST_CASE("profiles have names and come back from them") {
  for (const profile p : {profile::f32, profile::amx_bf16}) CHECK(profile_from_name(name(p)) == p);
  CHECK_FALSE(profile_from_name("F32").has_value());
  CHECK_FALSE(profile_from_name("").has_value());
}

TEST_CASE("the code for a profile says what it is") {
  for (const auto& math : all_profiles()) {
    CHECK(math->description().starts_with(name(math->numeric_profile())));
    CHECK(static_cast<int>(math->preferred_format()) == static_cast<int>(math->numeric_profile()));
  }
  CHECK(compute::make_f32(isa::scalar)->description() == "f32 (scalar)");
}

TEST_CASE("preparing a thread restores plain IEEE arithmetic") {
  prepare_thread();
  volatile float tiny = 0x1p-126F;
  tiny = tiny / 2;
  CHECK(tiny == 0x1p-127F);
  CHECK(tiny * 2 == 0x1p-126F);
}

TEST_CASE("a caller's broken promise stops the process") {
  const auto math = compute::make(profile::f32);
  const test_weight w = make_weight("stop.W", weight_dtype::f32, 40, 8);
  const packed_matrix packed = math->pack(w.view(), weight_format::f32);
  std::vector<float> x(8), y(40);
  scratch memory;
  const auto multiply = [&](int begin, int end) {
    math->matmul(packed, x.data(), 8, y.data(), 40, 1, begin, end, memory);
  };
  CHECK_FALSE(stops([&] { multiply(0, 40); }));
  CHECK(stops([&] { multiply(8, 40); }));
  CHECK(stops([&] { multiply(0, 20); }));
  CHECK(stops([&] { multiply(0, 48); }));
  CHECK(stops([&] { math->pack({weight_dtype::f32, nullptr, nullptr, 4, 4}, weight_format::f32); }));
  CHECK(stops([&] { math->pack({weight_dtype::fp8_e4m3, x.data(), nullptr, 4, 4}, weight_format::f32); }));
  CHECK(stops([&] { math->pack({weight_dtype::f32, x.data(), nullptr, 0, 4}, weight_format::f32); }));
  CHECK(stops([&] { math->pack(w.view(), weight_format::amx_bf16); }));

  router_parameters p;
  std::array<routed_expert, 64> out;
  std::vector<float> z(2048);
  CHECK(stops([&] { route(p, z.data(), nullptr, out.data()); }));
  p.experts = 2000;
  p.top_k = 1;
  CHECK(stops([&] { route(p, z.data(), nullptr, out.data()); }));
  p.experts = 64;
  p.groups = 8;
  p.top_k = 9;  // one kept group holds 8 experts
  CHECK(stops([&] { route(p, z.data(), nullptr, out.data()); }));
  p.top_k = 8;
  CHECK_FALSE(stops([&] { route(p, z.data(), nullptr, out.data()); }));
  CHECK(stops([&] { sample(*math, z.data(), 0, {}, 1, 0, 0, memory); }));
}
