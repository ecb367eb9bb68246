// Made-up loads: seeded, the same for the same settings.
//
// A generator gives every expert of a layer a popularity and deals the window's rows out in proportion. Layers
// are independent. Pure functions, any thread.
#pragma once

#include <string>

#include "runtime/error.hpp"
#include "runtime/placement/load.hpp"

namespace troupe {

enum class load_shape {
  uniform,     // popularity uniform in [0, 1)
  zipf,        // rank^-exponent, ranks shuffled in each layer
  log_normal,  // exp(sigma x normal)
  drifting,    // log-normal, its normals wandering: each window keeps `memory` of the last
  bursts,      // log-normal; in a window an expert is `height` times as popular with probability `probability`
  domains,     // a mixture of `domains` log-normal popularities whose shares wander from window to window
};

struct generator_settings {
  load_shape shape = load_shape::log_normal;
  uint32_t layers = 58;
  uint32_t experts = 256;
  uint32_t windows = 16;
  uint32_t sources = 0;       // shards whose rows are told apart; with domains each has its own mixture
  uint64_t tokens = 100'000;  // of a window
  uint32_t rows_per_token = 8;
  uint64_t seed = 1;
  double exponent = 1;        // zipf
  double sigma = 1;           // log_normal, drifting, bursts, domains
  double memory = 0.9;        // drifting, domains: 0 forgets, 1 never changes
  double probability = 0.01;  // bursts
  double height = 8;          // bursts
  uint32_t domains = 4;       // domains
};

// Fails: invalid_argument when a number is out of range; the sentence names it.
result<load_history> generate_load(const generator_settings& settings);

// Settings from `SHAPE` or `SHAPE:key=value,...`, keys as above. Fails: invalid_argument; the sentence lists
// shapes or keys.
result<generator_settings> parse_generator(const std::string& text);

}  // namespace troupe
