// The group-limited top-k router (MODEL.md 9.1 and 9.2).
#include <algorithm>
#include <array>
#include <limits>

#include "kernels/check.hpp"
#include "kernels/compute.hpp"
#include "kernels/cpu/lanes.hpp"

namespace troupe::kernels {
namespace {

constexpr int experts_max = 1024;

using scores = std::array<float, experts_max>;

void softmax(const float* z, float* s, int count) {
  const lane_kernels& lanes = best_lanes();
  const float largest = lanes.maximum(z, count);
  // Equal to the largest counts as distance 0, so that infinite logits give no NaN.
  for (int e = 0; e < count; ++e) s[e] = z[e] == largest ? 0.0F : z[e] - largest;
  lanes.exp_scaled(s, 0, 1, s, count);
  float sum = 0;
  for (int e = 0; e < count; ++e) sum += s[e];
  for (int e = 0; e < count; ++e) s[e] /= sum;
}

// A group's score: the sum of its two best experts (V3, selection by biased scores) or its best (V2).
float group_score(const float* c, int size, bool two_best) {
  float best = c[0];
  float second = -std::numeric_limits<float>::infinity();
  for (int e = 1; e < size; ++e) {
    if (c[e] > best) {
      second = best;
      best = c[e];
    } else if (c[e] > second) {
      second = c[e];
    }
  }
  return two_best && size > 1 ? best + second : best;
}

constexpr float least = -std::numeric_limits<float>::infinity();

// The lowest index of the largest value not yet taken; those that are taken hold the least value. Takes it.
int take_largest(float* values, std::array<bool, experts_max>& taken, int count) {
  const lane_kernels& lanes = best_lanes();
  int best = lanes.first_equal(values, count, lanes.maximum(values, count));
  // Where nothing but the least value and NaN is left, the first that is not taken.
  if (!(values[best] > least)) {
    best = 0;
    while (taken[static_cast<size_t>(best)]) ++best;
  }
  taken[static_cast<size_t>(best)] = true;
  values[best] = least;
  return best;
}

// Bars the experts of all groups but the best ones: they count as -infinity, and not even negative
// scores inside the chosen groups lose to them.
void bar_groups(const router_parameters& p, float* c, std::array<bool, experts_max>& barred) {
  const int size = p.experts / p.groups;
  scores ranks;
  for (int g = 0; g < p.groups; ++g)
    ranks[static_cast<size_t>(g)] = group_score(c + g * size, size, p.biased_selection);
  std::array<bool, experts_max> kept{};
  for (int i = 0; i < p.groups_kept; ++i) take_largest(ranks.data(), kept, p.groups);
  for (int e = 0; e < p.experts; ++e) {
    if (kept[static_cast<size_t>(e / size)]) continue;
    barred[static_cast<size_t>(e)] = true;
    c[e] = least;
  }
}

// V3 normalises and scales; V2 (softmax) does one or the other. With one expert HF never normalises.
void scale_gates(const router_parameters& p, routed_expert* out) {
  const bool normalise = p.normalise && p.top_k > 1;
  if (normalise) {
    float sum = 0;
    for (int i = 0; i < p.top_k; ++i) sum += out[i].gate;
    sum += 1e-20F;
    for (int i = 0; i < p.top_k; ++i) out[i].gate /= sum;
  }
  if (p.sigmoid || !normalise)
    for (int i = 0; i < p.top_k; ++i) out[i].gate *= p.scaling;
}

}  // namespace

void route(const router_parameters& p, const float* z, const float* bias, routed_expert* out) {
  require(p.experts > 0 && p.experts <= experts_max, "a router has between 1 and 1024 experts");
  const bool grouped = p.group_limited && p.groups > 1;
  require(!grouped || (p.experts % p.groups == 0 && p.groups_kept >= 1 && p.groups_kept <= p.groups),
          "expert groups are equal and some are kept");
  const int eligible = grouped ? p.experts / p.groups * p.groups_kept : p.experts;
  require(p.top_k >= 1 && p.top_k <= eligible, "the kept groups hold at least top_k experts");

  scores s;
  if (p.sigmoid) {
    best_lanes().sigmoid(z, s.data(), p.experts);
  } else {
    softmax(z, s.data(), p.experts);
  }
  // The bias decides who is chosen and nothing else.
  scores c;
  std::copy_n(s.begin(), p.experts, c.begin());
  if (p.biased_selection && bias != nullptr)
    for (int e = 0; e < p.experts; ++e) c[static_cast<size_t>(e)] += bias[e];

  std::array<bool, experts_max> taken{};
  if (grouped) bar_groups(p, c.data(), taken);
  for (int i = 0; i < p.top_k; ++i) {
    const int expert = take_largest(c.data(), taken, p.experts);
    out[i] = {expert, s[static_cast<size_t>(expert)]};
  }
  std::sort(out, out + p.top_k, [](const routed_expert& a, const routed_expert& b) {
    return a.gate != b.gate ? a.gate > b.gate : a.expert < b.expert;
  });
  scale_gates(p, out);
}

}  // namespace troupe::kernels
