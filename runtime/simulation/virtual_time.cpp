#include "runtime/simulation/virtual_time.hpp"

namespace troupe {

void virtual_time::schedule(virtual_clock::time_point time, int node, action what) {
  if (dead(node)) return;
  events_.emplace(std::pair(std::max(time, now_), sequence_++), event{node, std::move(what)});
}

void virtual_time::step() {
  const auto first = events_.begin();
  advance_to(first->first.first);
  event next = std::move(first->second);
  events_.erase(first);
  if (dead(next.node)) return;
  if (paused(next.node))
    held_.push_back(std::move(next));
  else
    next.what();
}

void virtual_time::resume(int node) {
  paused_.erase(node);
  std::vector<event> still_held;
  for (auto& waiting : held_) {
    if (waiting.node == node)
      schedule(now_, node, std::move(waiting.what));
    else
      still_held.push_back(std::move(waiting));
  }
  held_ = std::move(still_held);
}

void virtual_time::kill(int node) {
  dead_.insert(node);
  paused_.erase(node);
  std::erase_if(events_, [node](const auto& entry) { return entry.second.node == node; });
  std::erase_if(held_, [node](const event& waiting) { return waiting.node == node; });
}

}  // namespace troupe
