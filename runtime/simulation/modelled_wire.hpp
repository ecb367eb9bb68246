// The wire seam in virtual time: latency, bandwidth and queueing for each directed link.
//
// A message takes its turn on the link (`link_queue`), then the link's latency; it is validated on
// arrival like one from a real peer. Messages to or from a dead node, or to an incarnation that is gone,
// are dropped.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "runtime/simulation/virtual_time.hpp"
#include "runtime/wire/link_queue.hpp"
#include "runtime/wire/wire.hpp"

namespace troupe {

// A link's shape as simulations are given it.
struct link_model {
  std::chrono::nanoseconds latency{5000};
  double bytes_per_s = 10e9;

  link_shape shape() const { return {static_cast<double>(latency.count()) / 1000, bytes_per_s / 1e6, 0}; }
};

class modelled_wire;

// The links between all simulated nodes.
class modelled_network {
 public:
  modelled_network(virtual_time& time, link_table shapes, uint64_t seed)
      : time_(time), shapes_(std::move(shapes)), seed_(seed) {}

  virtual_time& time() { return time_; }
  const link_table& shapes() const { return shapes_; }
  void attach(uint16_t node, modelled_wire* wire) { wires_[node] = wire; }
  void detach(uint16_t node, const modelled_wire* wire) {
    if (const auto at = wires_.find(node); at != wires_.end() && at->second == wire) wires_.erase(at);
  }
  // Takes the message to its destination; returns false when there is none.
  bool carry(const modelled_wire& from, const endpoint& to, micro_batch message);
  // As if the connection between two nodes broke and was made anew: what is on the way is lost.
  void cut(uint16_t a, uint16_t b);
  // Drops what is on the way. Requires: no event is scheduled any more.
  void clear() { links_.clear(); }

  // Of the link; zero when it carried nothing.
  link_counters counters(uint16_t from, uint16_t to) const;
  // How long the busiest link out of a node was occupied.
  uint64_t busiest_link_ns(uint16_t from) const;

  // Called for every message that a link takes.
  void observe(std::function<void(const micro_batch_header&, const endpoint&)> observer) {
    observer_ = std::move(observer);
  }

 private:
  struct link {
    link(modelled_network* owner, link_identity identity, const link_shape& shape)
        : network(owner), queue(identity, shape) {}
    modelled_network* network;
    link_queue queue;
    std::optional<virtual_clock::time_point> wakes_at;
  };

  void wake_at_next(link& of);
  void serve(link& woken);
  void hand_over(const endpoint& to, micro_batch message);
  void arrive(const endpoint& to, micro_batch message);

  virtual_time& time_;
  const link_table shapes_;
  const uint64_t seed_;
  std::map<uint16_t, modelled_wire*> wires_;
  std::map<std::pair<uint16_t, uint16_t>, link> links_;
  std::function<void(const micro_batch_header&, const endpoint&)> observer_;
};

class modelled_wire final : public wire {
 public:
  // `process`: the simulated process (virtual_time's node) that this wire lives in.
  modelled_wire(std::shared_ptr<modelled_network> network, int process, uint16_t node, uint32_t incarnation);
  ~modelled_wire() override;

  void attach(uint16_t slot, receiver to) override { receivers_[slot] = std::move(to); }
  void detach(uint16_t slot) override { receivers_.erase(slot); }
  result<void> send(endpoint to, micro_batch message) override;
  wire_statistics statistics() const override;
  uint64_t transfer_ns(uint16_t from, uint16_t to, uint64_t bytes) const override;

  int process() const { return process_; }
  uint16_t node() const { return node_; }
  uint32_t incarnation() const { return incarnation_; }
  void deliver(uint16_t slot, micro_batch message);

 private:
  std::shared_ptr<modelled_network> network_;
  int process_;
  uint16_t node_;
  uint32_t incarnation_;
  std::map<uint16_t, receiver> receivers_;
  wire_statistics statistics_;
};

}  // namespace troupe
