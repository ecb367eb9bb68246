// What is known of the load: rows dispatched to every expert, window by window.
//
// A row is one token sent to one expert; the rows that a device receives are the load that placement
// balances. Whoever records or reads a load owns it; policies only read. Pure values, any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace troupe {

// Tokens of a window that chose both experts of a layer; a < b.
struct expert_pair {
  uint32_t layer = 0;
  uint32_t a = 0;
  uint32_t b = 0;
  uint64_t tokens = 0;
};

struct load_window {
  std::vector<uint64_t> rows;         // [layers, experts], uint64
  std::vector<uint64_t> source_rows;  // [sources, layers, experts], uint64; empty when not recorded
  std::vector<expert_pair> pairs;     // empty when not recorded
};

// Layers are the MoE layers only, numbered from 0. The newest window is the last.
struct load_history {
  uint32_t layers = 0;
  uint32_t experts = 0;
  uint32_t sources = 0;  // shards that `source_rows` tells apart
  std::vector<load_window> windows;
};

// The load that a policy should expect next: the newest window and, each `decay` times as heavy as the
// one after it, the older ones. Shape [layers, experts], double. Decay 0 is the newest window alone; no
// window at all is one row for each expert, so that a policy places evenly.
// Requires: 0 <= decay < 1; windows of the history's shape.
std::vector<double> expected_rows(const load_history& load, double decay);

// One window in which every expert has one row.
load_history even_load(uint32_t layers, uint32_t experts);

// Windows [from, to) of a history.
load_history windows_of(const load_history& load, size_t from, size_t to);

}  // namespace troupe
