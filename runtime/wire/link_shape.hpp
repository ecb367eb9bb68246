// What a network link does to messages: latency, bandwidth and jitter, and which link has which.
//
// Pure values. Used by the wires that imitate a network: `modelled_wire` in virtual time and
// `shaped_wire` live, and by whoever needs a bound on the time that a transfer takes.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "runtime/error.hpp"

namespace troupe {

struct link_shape {
  double latency_us = 0;      // from the last byte's departure to its arrival
  double bandwidth_mb_s = 0;  // 10^6 bytes a second; 0: unlimited
  double jitter_us = 0;       // on top of the latency: uniform from 0 to this

  bool operator==(const link_shape&) const = default;

  // Whether it leaves messages as they are.
  bool is_open() const { return latency_us == 0 && bandwidth_mb_s == 0 && jitter_us == 0; }

  uint64_t latency_ns() const;
  uint64_t jitter_ns() const;
  // How long `bytes` occupy the link, rounded up.
  uint64_t occupied_ns(uint64_t bytes) const;
  // From the start of a transfer on an idle link to its arrival, without jitter.
  uint64_t transfer_ns(uint64_t bytes) const { return occupied_ns(bytes) + latency_ns(); }
};

// The shape of the directed links from one node to another.
struct link_rule {
  static constexpr int32_t any_node = -1;

  int32_t from = any_node;
  int32_t to = any_node;
  link_shape shape;

  bool operator==(const link_rule&) const = default;
};

// Ranges, and that no two rules are for the same pair. Node numbers must be below `nodes`.
// Fails: invalid_argument, naming the rule and the field.
result<void> validate(std::span<const link_rule> rules, uint32_t nodes);

// Shapes of all directed links. The most specific rule counts: from-to, then from-any, any-to, any-any,
// and the default last.
class link_table {
 public:
  link_table() = default;
  explicit link_table(link_shape otherwise) : otherwise_(otherwise) {}
  link_table(link_shape otherwise, std::span<const link_rule> rules);

  void set(const link_rule& rule) { shapes_[{rule.from, rule.to}] = rule.shape; }
  const link_shape& find(uint16_t from, uint16_t to) const;

 private:
  link_shape otherwise_;
  std::map<std::pair<int32_t, int32_t>, link_shape> shapes_;
};

}  // namespace troupe
