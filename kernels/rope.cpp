// Rotary embedding with YaRN (MODEL.md 7). Angles, sines and cosines are computed in double.
#include <algorithm>
#include <cmath>

#include "kernels/check.hpp"
#include "kernels/compute.hpp"
#include "kernels/math_functions.hpp"

namespace troupe::kernels {
namespace {

constexpr double pi = 0x1.921fb54442d18p1;

// g(s, m) of MODEL.md 7.2.
double magnitude_scale(double factor, double m) { return factor <= 1 ? 1.0 : 0.1 * m * log_f64(factor) + 1.0; }

// The pair index at which a wave turns `turns` times within the original context (MODEL.md 7.1).
double correction(const rope_parameters& p, double turns) {
  return p.dim * log_f64(p.original_max_position / (2 * pi * turns)) / (2 * log_f64(p.theta));
}

}  // namespace

std::vector<float> inverse_frequencies(const rope_parameters& p) {
  require(p.dim > 0 && p.dim % 2 == 0 && p.theta > 1, "rotary embedding has an even width and a base above 1");
  const bool scaled = p.factor > 0;
  double low = 0, high = 0;
  if (scaled) {
    low = std::max(std::floor(correction(p, p.beta_fast)), 0.0);
    high = std::min(std::ceil(correction(p, p.beta_slow)), p.dim - 1.0);
    if (low == high) high += 0.001;
  }
  std::vector<float> frequencies(static_cast<size_t>(p.dim / 2));
  for (int i = 0; i < p.dim / 2; ++i) {
    double w = exp_f64(-2.0 * i / p.dim * log_f64(p.theta));
    if (scaled) {
      const double ramp = std::clamp((i - low) / (high - low), 0.0, 1.0);
      w = w * (1 - ramp) + w / p.factor * ramp;
    }
    frequencies[static_cast<size_t>(i)] = static_cast<float>(w);
  }
  return frequencies;
}

double rope_cos_sin_scale(const rope_parameters& p) {
  if (p.factor <= 0) return 1;
  return magnitude_scale(p.factor, p.mscale) / magnitude_scale(p.factor, p.mscale_all_dim);
}

double softmax_scale(const rope_parameters& p, int dq) {
  require(dq > 0, "a head has a width");
  const double plain = 1.0 / std::sqrt(static_cast<double>(dq));
  if (p.factor <= 0 || p.mscale_all_dim == 0) return plain;
  const double g = magnitude_scale(p.factor, p.mscale_all_dim);
  return plain * g * g;
}

void rope_table(std::span<const float> frequencies, int64_t position, double cos_sin_scale, float* cosines,
                float* sines) {
  for (size_t i = 0; i < frequencies.size(); ++i) {
    double sine = 0, cosine = 0;
    sine_cosine(static_cast<double>(position) * static_cast<double>(frequencies[i]), sine, cosine);
    cosines[i] = static_cast<float>(cosine * cos_sin_scale);
    sines[i] = static_cast<float>(sine * cos_sin_scale);
  }
}

void rope_rotate(float* x, const float* cosines, const float* sines, int dim) {
  for (int i = 0; i < dim / 2; ++i) {
    const float even = x[2 * i], odd = x[2 * i + 1];
    x[2 * i] = even * cosines[i] - odd * sines[i];
    x[2 * i + 1] = even * sines[i] + odd * cosines[i];
  }
}

}  // namespace troupe::kernels
