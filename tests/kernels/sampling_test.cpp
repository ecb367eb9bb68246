// Philox and the sampler: known answers, the right distribution, determinism, odd parameters.
#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <numeric>

#include "tests/kernels/fixtures.hpp"

using namespace troupe::testing;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

sampled_token draw(const std::vector<float>& logits, const sampling_parameters& p, uint64_t seed, uint32_t index) {
  static const auto math = compute::make(profile::f32);
  static scratch memory;
  return sample(*math, logits.data(), static_cast<int>(logits.size()), p, seed, 0, index, memory);
}

// The tokens that a plain sort keeps, with their probabilities after temperature, top-k and top-p.
std::map<int, double> distribution(const std::vector<float>& logits, const sampling_parameters& p) {
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)]; });
  const auto weight = [&](int token) {
    const auto distance = logits[static_cast<size_t>(token)] - logits[static_cast<size_t>(order[0])];
    return std::exp(static_cast<double>(distance) / static_cast<double>(p.temperature));
  };
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < order.size()) order.resize(static_cast<size_t>(p.top_k));
  const auto mass = [&] {
    double sum = 0;
    for (const int token : order) sum += weight(token);
    return sum;
  };
  if (p.top_p < 1) {
    const double wanted = static_cast<double>(p.top_p) * mass();
    double sum = 0;
    size_t kept = 0;
    while (kept < order.size() && (kept == 0 || sum < wanted)) sum += weight(order[kept++]);
    order.resize(kept);
  }
  const double total = mass();
  std::map<int, double> probabilities;
  for (const int token : order) probabilities[token] = weight(token) / total;
  return probabilities;
}

}  // namespace

TEST_CASE("Philox4x32-10 gives Random123's known answers") {
  struct vector {
    std::array<uint32_t, 4> counter;
    std::array<uint32_t, 2> key;
    std::array<uint32_t, 4> expected;
  };
  constexpr uint32_t ones = 0xffffffff;
  const std::array vectors = {
      vector{{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      vector{{ones, ones, ones, ones}, {ones, ones}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      vector{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
             {0xa4093822, 0x299f31d0},
             {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
  for (const vector& v : vectors) {
    std::array<uint32_t, 4> out;
    philox4x32(v.key.data(), v.counter.data(), out.data());
    CHECK(out == v.expected);
  }
}

TEST_CASE("temperature 0 is greedy and the log-probability is of the plain distribution") {
  const std::vector<float> logits = {1, 3, 2, 3};
  const sampled_token greedy = draw(logits, {0, 1, 0}, 1, 0);
  CHECK(greedy.token == 1);
  const double expected = 3 - std::log(std::exp(1.0) + 2 * std::exp(3.0) + std::exp(2.0));
  CHECK(greedy.logprob == doctest::Approx(expected).epsilon(1e-6));
  for (uint32_t i = 0; i < 20; ++i) {
    const sampled_token hot = draw(logits, {5, 0.9F, 3}, 7, i);
    CHECK(hot.logprob == doctest::Approx(expected + static_cast<double>(logits[static_cast<size_t>(hot.token)]) - 3));
  }
}

TEST_CASE("draws follow the distribution that temperature, top-k and top-p leave") {
  const auto logits = values("chi.logits", 40, 4);
  const std::array settings = {sampling_parameters{1, 1, 0},        sampling_parameters{0.6F, 0.95F, 0},
                               sampling_parameters{2, 0.7F, 0},     sampling_parameters{1, 1, 5},
                               sampling_parameters{1.5F, 0.8F, 12}, sampling_parameters{1, 0.01F, 0}};
  for (const sampling_parameters& p : settings) {
    const auto expected = distribution(logits, p);
    constexpr int draws = 100000;
    std::map<int, int> counts;
    for (uint32_t i = 0; i < draws; ++i) ++counts[draw(logits, p, 42, i).token];
    double chi_square = 0;
    for (const auto& [token, count] : counts) REQUIRE(expected.contains(token));
    for (const auto& [token, probability] : expected) {
      const double mean = probability * draws;
      chi_square += (counts[token] - mean) * (counts[token] - mean) / mean;
    }
    // Wilson and Hilferty's bound at about one in a million.
    const double freedom = std::max(1.0, static_cast<double>(expected.size()) - 1);
    const double root = 1 - 2 / (9 * freedom) + 4.75 * std::sqrt(2 / (9 * freedom));
    CAPTURE(p.temperature);
    CAPTURE(p.top_p);
    CAPTURE(p.top_k);
    CHECK(chi_square <= freedom * root * root * root);
  }
}

TEST_CASE("a draw depends on the seed, the choice and the index alone") {
  const auto logits = values("draw.logits", 5000, 5);
  const auto scalar = compute::make_f32(isa::scalar);
  const auto fastest = compute::make(profile::f32);
  scratch fresh, used;
  used.take(1 << 20);
  const sampling_parameters p{0.8F, 0.9F, 100};
  std::vector<int> tokens;
  for (uint32_t i = 0; i < 50; ++i) {
    const sampled_token a = sample(*scalar, logits.data(), 5000, p, 9, 2, i, fresh);
    const sampled_token b = sample(*fastest, logits.data(), 5000, p, 9, 2, i, used);
    CHECK(a.token == b.token);
    CHECK(a.logprob == b.logprob);
    tokens.push_back(a.token);
  }
  const auto differs = [&](uint64_t seed, uint32_t choice) {
    int count = 0;
    for (uint32_t i = 0; i < 50; ++i)
      count += sample(*fastest, logits.data(), 5000, p, seed, choice, i, used).token != tokens[i];
    return count;
  };
  CHECK(differs(9, 2) == 0);
  CHECK(differs(10, 2) > 25);
  CHECK(differs(uint64_t{9} | uint64_t{1} << 40, 2) > 25);
  CHECK(differs(9, 3) > 25);
}

TEST_CASE("ties at the limit of top-k and top-p go to the lower token") {
  const std::vector<float> equal(300, 1.5F);
  for (uint32_t i = 0; i < 500; ++i) {
    CHECK(draw(equal, {1, 1, 7}, 3, i).token < 7);
    CHECK(draw(equal, {1, 0.1F, 0}, 3, i).token <= 30);
    CHECK(draw(equal, {1, 0.5F, 10}, 3, i).token < 5);
  }
}

TEST_CASE("a whole vocabulary keeps exactly the tokens that a sort keeps") {
  const auto logits = values("vocabulary.logits", 129280, 12);
  for (const sampling_parameters p :
       {sampling_parameters{0.6F, 0.95F, 0}, sampling_parameters{1, 1, 50}, sampling_parameters{1, 0.3F, 1000}}) {
    const auto expected = distribution(logits, p);
    for (uint32_t i = 0; i < 50; ++i) CHECK(expected.contains(draw(logits, p, 5, i).token));
  }
}

TEST_CASE("odd sampling parameters have a defined meaning") {
  const std::vector<float> logits = {0, 4, 2, 1};
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  for (uint32_t i = 0; i < 50; ++i) {
    CHECK(draw(logits, {-1, 1, 0}, 1, i).token == 1);  // a negative or NaN temperature is greedy
    CHECK(draw(logits, {nan, 1, 0}, 1, i).token == 1);
    CHECK(draw(logits, {1, 0, 0}, 1, i).token == 1);  // top_p 0 keeps one token
    CHECK(draw(logits, {1, -3, 0}, 1, i).token == 1);
    CHECK(draw(logits, {1e-40F, 1, 0}, 1, i).token == 1);  // a denormal temperature
    CHECK(draw(logits, {1, 1, 1}, 1, i).token == 1);
    CHECK(draw(logits, {1, 2, -5}, 1, i).token < 4);        // top_p above 1 and a negative top_k are off
    CHECK(draw(logits, {1, 1, 99}, 1, i).token < 4);        // top_k beyond the vocabulary
    CHECK(draw(logits, {infinity, 1, 0}, 1, i).token < 4);  // uniform
  }
}

TEST_CASE("masked tokens are never drawn and a single token always is") {
  std::vector<float> logits(1000, -infinity);
  logits[123] = -3;
  logits[877] = -4;
  for (uint32_t i = 0; i < 200; ++i) {
    const int token = draw(logits, {3, 0.999F, 500}, 11, i).token;
    const bool allowed = token == 123 || token == 877;
    CHECK(allowed);
  }
  CHECK(draw({0.5F}, {1, 0.5F, 3}, 1, 0).token == 0);
  CHECK(draw({0.5F}, {1, 0.5F, 3}, 1, 0).logprob == 0);
}
