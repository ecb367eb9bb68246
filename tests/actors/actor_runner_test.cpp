// Which thread handles what a wire or a device brings an actor.
#include "actors/actor_runner.hpp"

#include <doctest/doctest.h>

#include <array>
#include <future>
#include <thread>
#include <vector>

#include "actors/messages.hpp"
#include "apps/cluster/head.hpp"

namespace troupe {
namespace {

constexpr uint16_t own_node = 1;
constexpr uint16_t other_node = 2;

// Of which only one answer matters.
class silent_wire final : public wire {
 public:
  explicit silent_wire(uint32_t most) : most_(most) {}
  void attach(uint16_t, receiver) override {}
  void detach(uint16_t) override {}
  result<void> send(endpoint, micro_batch) override { return {}; }
  wire_statistics statistics() const override { return {}; }
  uint32_t handlers_most() const override { return most_; }

 private:
  uint32_t most_;
};

micro_batch message_of(uint16_t node, uint64_t step = 0) {
  micro_batch message;
  message.header.source_node = node;
  message.header.step = step;
  return message;
}

struct fixture {
  std::unique_ptr<caf::actor_system_config> config = make_system_config(false);
  caf::actor_system system{*config};
  silent_wire runs{1};
  silent_wire runs_all{1024};
  silent_wire waits{0};
  const std::thread::id here = std::this_thread::get_id();

  // Idle from the start: it begins with its first message.
  template <class Handler>
  caf::actor idle_actor(Handler handler) {
    return system.spawn<caf::lazy_init>([handler](caf::event_based_actor* self) -> caf::behavior {
      return {[handler, self](const micro_batch& message) { handler(self, message); }};
    });
  }

  // The threads on which an actor handles a message from each of these nodes, one after the other.
  std::vector<std::thread::id> threads_of(const wire& from, const std::vector<uint16_t>& nodes) {
    std::vector<std::thread::id> out;
    std::promise<std::thread::id> handled;
    const auto actor = idle_actor(
        [&handled](caf::event_based_actor*, const micro_batch&) { handled.set_value(std::this_thread::get_id()); });
    const auto receive = deliver_to(actor, own_node, from, [](const micro_batch&) {});
    for (const uint16_t node : nodes) {
      handled = {};
      receive(message_of(node));
      out.push_back(handled.get_future().get());
    }
    return out;
  }
};

TEST_CASE_FIXTURE(fixture, "an idle actor handles another node's messages on the thread that delivers") {
  CHECK(threads_of(runs, {other_node, other_node, other_node}) == std::vector(3, here));
}

TEST_CASE_FIXTURE(fixture, "a message of the node itself is handled by the scheduler") {
  CHECK(threads_of(runs, {own_node})[0] != here);
}

TEST_CASE_FIXTURE(fixture, "a wire that delivers on its callers' threads leaves everything to the scheduler") {
  CHECK(threads_of(waits, {other_node})[0] != here);
}

TEST_CASE_FIXTURE(fixture, "an actor that runs already takes a delivered message after what it does") {
  std::promise<void> begun;
  std::promise<void> delivered;
  std::vector<std::pair<uint64_t, std::thread::id>> handled;
  const auto actor = idle_actor([&](caf::event_based_actor* self, const micro_batch& message) {
    if (message.header.step == 1) {
      begun.set_value();
      delivered.get_future().wait();
    } else {
      self->quit();
    }
    handled.emplace_back(message.header.step, std::this_thread::get_id());
  });
  caf::anon_send(actor, message_of(other_node, 1));
  begun.get_future().wait();
  deliver_to(actor, own_node, runs, [](const micro_batch&) {})(message_of(other_node, 2));
  delivered.set_value();
  caf::scoped_actor waiter(system);
  waiter->wait_for(actor);
  REQUIRE(handled.size() == 2);
  CHECK(handled[0].first == 1);
  CHECK(handled[1].first == 2);
  CHECK(handled[1].second != here);
}

TEST_CASE_FIXTURE(fixture, "after one message an actor goes on on the scheduler, and what it wakes runs there") {
  std::promise<std::thread::id> woken;
  std::promise<std::thread::id> second;
  const auto other =
      idle_actor([&](caf::event_based_actor*, const micro_batch&) { woken.set_value(std::this_thread::get_id()); });
  const auto actor = idle_actor([&](caf::event_based_actor* self, const micro_batch& message) {
    if (message.header.step == 2) return second.set_value(std::this_thread::get_id());
    self->send(other, message_of(own_node));
    self->send(self, message_of(own_node, 2));
  });
  deliver_to(actor, own_node, runs, [](const micro_batch&) {})(message_of(other_node, 1));
  CHECK(woken.get_future().get() != here);
  CHECK(second.get_future().get() != here);
}

TEST_CASE_FIXTURE(fixture, "an actor may end on the thread that delivers, and later messages are lost") {
  int handled = 0;
  const auto actor = idle_actor([&](caf::event_based_actor* self, const micro_batch&) {
    ++handled;
    self->quit();
  });
  const auto receive = deliver_to(actor, own_node, runs, [](const micro_batch&) {});
  for (int i = 0; i < 3; ++i) receive(message_of(other_node));
  CHECK(handled == 1);
}

constexpr auto always = [] { return true; };

// The actors of a dispatch: the first tells the second, the second answers with the thread each of them ran on.
struct chain {
  explicit chain(fixture& in) {
    second = in.idle_actor([this](caf::event_based_actor*, const micro_batch&) {
      threads[1] = std::this_thread::get_id();
      done.set_value();
    });
    first = in.idle_actor([this](caf::event_based_actor*, const micro_batch& message) {
      threads[0] = std::this_thread::get_id();
      post(second, message);
    });
  }
  std::array<std::thread::id, 2> threads;
  std::promise<void> done;
  caf::actor first, second;
};

TEST_CASE_FIXTURE(fixture, "a runner runs the actors that its work tells something, and those that they tell") {
  chain actors(*this);
  actor_runner runner(system, 10);
  runner.run([&] { post(actors.first, message_of(own_node)); }, always);
  actors.done.get_future().get();
  CHECK(actors.threads == std::array{here, here});
}

TEST_CASE_FIXTURE(fixture, "where the wire allows it, what a message sets in motion runs on the thread that delivers") {
  chain actors(*this);
  deliver_to(actors.first, own_node, runs_all, [](const micro_batch&) {})(message_of(other_node));
  actors.done.get_future().get();
  CHECK(actors.threads == std::array{here, here});
}

TEST_CASE_FIXTURE(fixture,
                  "a runner leaves no reference to the actor system on its thread where an actor spawned another") {
  const auto spawning = idle_actor([](caf::event_based_actor* self, const micro_batch&) {
    self->spawn([](caf::event_based_actor*, int) {}, 0);
    self->quit();
  });
  const caf::logger* left = nullptr;
  std::thread([&] {
    actor_runner runner(system, 1);
    runner.run([&] { post(spawning, message_of(own_node)); }, always);
    left = caf::logger::current_logger();
  }).join();
  CHECK(left == nullptr);  // `~actor_system` waits until no thread refers to its logger
}

TEST_CASE_FIXTURE(fixture, "beyond a runner's number of handlers the scheduler goes on") {
  chain actors(*this);
  actor_runner runner(system, 1);
  runner.run([&] { post(actors.first, message_of(own_node)); }, always);
  actors.done.get_future().get();
  CHECK(actors.threads[0] == here);
  CHECK(actors.threads[1] != here);
}

TEST_CASE_FIXTURE(fixture, "a runner that has better things to do leaves its actors to the scheduler") {
  chain actors(*this);
  actor_runner runner(system, 10);
  runner.run([&] { post(actors.first, message_of(own_node)); }, [] { return false; });
  actors.done.get_future().get();
  CHECK(actors.threads[0] != here);
  CHECK(actors.threads[1] != here);
}

TEST_CASE_FIXTURE(fixture, "outside a runner's work a post goes to the scheduler") {
  chain actors(*this);
  actor_runner runner(system, 10);
  runner.run([] {}, always);
  post(actors.first, message_of(own_node));
  actors.done.get_future().get();
  CHECK(actors.threads[0] != here);
}

}  // namespace
}  // namespace troupe
