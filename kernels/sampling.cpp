// Drawing a token: temperature, top-k, top-p, one uniform number (MODEL.md 14).
//
// No full sort: tokens fall into buckets by their distance from the largest logit, whole buckets are kept or
// dropped, and only the bucket in which the limit falls is sorted. Every sum runs in a fixed order in double, so
// the result depends on the arguments alone.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/check.hpp"
#include "kernels/compute.hpp"
#include "kernels/cpu/lanes.hpp"

namespace troupe::kernels {
namespace {

struct candidate {
  float logit;
  float weight;  // exp((logit - largest) / temperature)
  int token;
};

// The order of preference: larger logit, then lower token id.
bool better(const candidate& a, const candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

// Sign and exponent and 4 bits of mantissa of a distance >= 0: finer where it is small.
constexpr int bucket_count = 4096;
constexpr size_t bucket_of(float largest, float logit) {
  const float distance = largest - logit;
  return std::bit_cast<uint32_t>(distance) >> 19 & (bucket_count - 1);
}

// What a rule has used up so far.
struct running {
  int64_t count = 0;
  double mass = 0;
};

// Keeps the best `count_max` candidates or, of those, the fewest whose weights sum to at least `mass_min`; the one
// that crosses is kept. Candidates come and stay in the order of tokens. `spare` has room for all of them.
std::span<candidate> keep_best(std::span<candidate> all, candidate* spare, float largest, int64_t count_max,
                               double mass_min) {
  std::array<running, bucket_count> buckets{};
  for (const candidate& c : all) {
    running& bucket = buckets[bucket_of(largest, c.logit)];
    ++bucket.count;
    bucket.mass += static_cast<double>(c.weight);
  }
  running used;
  size_t limit = 0;  // the first bucket that may not be kept whole
  for (; limit < bucket_count; ++limit) {
    const running& bucket = buckets[limit];
    if (used.count + bucket.count > count_max || used.mass + bucket.mass >= mass_min) break;
    used.count += bucket.count;
    used.mass += bucket.mass;
  }
  if (limit == bucket_count) return all;
  // Only the limiting bucket needs an order.
  candidate* const spare_end = std::copy_if(all.begin(), all.end(), spare,
                                            [&](const candidate& c) { return bucket_of(largest, c.logit) == limit; });
  std::sort(spare, spare_end, better);
  const candidate* end = spare;  // one behind the last that is kept
  while (end != spare_end && used.count < count_max && (used.mass < mass_min || used.count == 0)) {
    ++used.count;
    used.mass += static_cast<double>(end->weight);
    ++end;
  }
  const auto dropped = std::remove_if(all.begin(), all.end(), [&](const candidate& c) {
    const size_t bucket = bucket_of(largest, c.logit);
    return bucket > limit || (bucket == limit && (end == spare || better(end[-1], c)));
  });
  return {all.begin(), dropped};
}

double mass_of(std::span<const candidate> all) {
  double mass = 0;
  for (const candidate& c : all) mass += static_cast<double>(c.weight);
  return mass;
}

// 53 random bits in [0, 1), a function of the request's seed, the choice and the token's index alone.
double uniform(uint64_t seed, uint32_t choice, uint32_t index) {
  const uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  const uint32_t counter[4] = {index, choice, 0, 0};  // third word: number of the draw
  uint32_t words[4];
  philox4x32(key, counter, words);
  const uint64_t bits = (uint64_t{words[0]} << 21) | (words[1] >> 11);
  return static_cast<double>(bits) * 0x1p-53;
}

int draw(std::span<const candidate> all, double u) {
  const double target = u * mass_of(all);
  double mass = 0;
  int last = all.front().token;
  for (const candidate& c : all) {
    if (!(c.weight > 0)) continue;  // rounding must not let the draw end on an impossible token
    mass += static_cast<double>(c.weight);
    last = c.token;
    if (mass > target) break;
  }
  return last;
}

int sample_token(const float* logits, int count, float largest, const sampling_parameters& p, double u,
                 scratch& memory) {
  const auto size = static_cast<size_t>(count);
  auto* room = reinterpret_cast<candidate*>(memory.take(size * (2 * sizeof(candidate) + sizeof(float))));
  candidate* spare = room + size;
  auto* weights = reinterpret_cast<float*>(spare + size);
  best_lanes().exp_scaled(logits, largest, p.temperature, weights, count);
  size_t left = 0;
  // Tokens masked with -infinity, or NaN, are no candidates.
  for (int i = 0; i < count; ++i)
    if (logits[i] > -std::numeric_limits<float>::infinity()) room[left++] = {logits[i], weights[i], i};
  std::span<candidate> all(room, left);
  constexpr double any_mass = std::numeric_limits<double>::infinity();
  constexpr int64_t any_count = std::numeric_limits<int64_t>::max();
  if (p.top_k > 0 && p.top_k < count) all = keep_best(all, spare, largest, p.top_k, any_mass);
  if (p.top_p < 1) all = keep_best(all, spare, largest, any_count, static_cast<double>(p.top_p) * mass_of(all));
  return draw(all, u);
}

}  // namespace

sampled_token sample(const compute& math, const float* logits, int count, const sampling_parameters& p, uint64_t seed,
                     uint32_t choice, uint32_t index, scratch& memory) {
  require(count > 0, "there is a token to sample");
  const int best = math.argmax(logits, count);
  const float largest = logits[best];
  const float normaliser = math.log_sum_exp(logits, count, memory);
  int token = best;
  // Without a finite largest logit there is no distribution; the caller reports such logits.
  if (p.temperature > 0 && std::isfinite(largest))
    token = sample_token(logits, count, largest, p, uniform(seed, choice, index), memory);
  return {token, logits[token] - normaliser};
}

}  // namespace troupe::kernels
