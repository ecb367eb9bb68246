// Distinct types for the numbers that name things, so that one cannot be passed for another.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace troupe {

template <class Tag, class Representation>
struct strong_id {
  Representation value = 0;

  auto operator<=>(const strong_id&) const = default;
};

template <class Inspector, class Tag, class Representation>
auto inspect(Inspector& f, strong_id<Tag, Representation>& id) {
  return f(id.value);
}

using node_id = strong_id<struct node_id_tag, uint16_t>;
using request_id = strong_id<struct request_id_tag, uint64_t>;
// A process of a node: a node that comes back has a new one.
using incarnation_id = strong_id<struct incarnation_id_tag, uint32_t>;
// Placement epoch; only grows.
using epoch_id = strong_id<struct epoch_id_tag, uint64_t>;

}  // namespace troupe

template <class Tag, class Representation>
struct std::hash<troupe::strong_id<Tag, Representation>> {
  size_t operator()(const troupe::strong_id<Tag, Representation>& id) const noexcept {
    return std::hash<Representation>{}(id.value);
  }
};
