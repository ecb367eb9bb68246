// What a series of measurements says.
#pragma once

#include <cmath>
#include <utility>
#include <vector>

namespace troupe {

// Mean and half the width of its 95 % confidence interval (normal approximation).
inline std::pair<double, double> mean_of(const std::vector<double>& values) {
  double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  const double mean = sum / static_cast<double>(values.size());
  for (const double value : values) squares += (value - mean) * (value - mean);
  const double n = static_cast<double>(values.size());
  return {mean, n > 1 ? 1.96 * std::sqrt(squares / (n - 1) / n) : 0};
}

}  // namespace troupe
