// The router against the vectors G1 to G6 of MODEL.md 17.5, and its edges.
#include <algorithm>
#include <limits>
#include <map>
#include <string>

#include "tests/kernels/fixtures.hpp"

using namespace troupe::testing;

namespace {

// Expert to gate, from route(); also checks the promised order.
std::map<int, float> chosen(const router_parameters& p, const std::vector<float>& z, const std::vector<float>& bias) {
  std::vector<routed_expert> out(static_cast<size_t>(p.top_k));
  route(p, z.data(), bias.empty() ? nullptr : bias.data(), out.data());
  for (size_t i = 1; i < out.size(); ++i) {
    const bool ordered =
        out[i - 1].gate > out[i].gate || (out[i - 1].gate == out[i].gate && out[i - 1].expert < out[i].expert);
    CHECK(ordered);
  }
  std::map<int, float> gates;
  for (const routed_expert& e : out) gates[e.expert] = e.gate;
  CHECK(gates.size() == out.size());
  return gates;
}

void check_gates(const std::map<int, float>& found, const std::map<int, float>& expected) {
  REQUIRE(found.size() == expected.size());
  for (const auto& wanted : expected) {
    CAPTURE(wanted.first);
    REQUIRE(found.contains(wanted.first));
    CHECK(found.at(wanted.first) == doctest::Approx(wanted.second).epsilon(2e-6));
  }
}

std::vector<float> t0_scaled(const std::string& name, int count, float divisor) {
  std::vector<float> out(static_cast<size_t>(count));
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(t0_k16(name, i) - 32768) / divisor;
  return out;
}

router_parameters v3(int experts, int groups, int kept, int top_k, float scaling) {
  router_parameters p;
  p.experts = experts;
  p.groups = groups;
  p.groups_kept = kept;
  p.top_k = top_k;
  p.scaling = scaling;
  return p;
}

router_parameters v2(int experts, int groups, int kept, int top_k, float scaling) {
  router_parameters p = v3(experts, groups, kept, top_k, scaling);
  p.sigmoid = false;
  p.normalise = false;
  p.group_limited = groups > 1;
  p.biased_selection = false;
  return p;
}

}  // namespace

TEST_CASE("router vector G1: group scores are sums of two biased scores, gates are unbiased") {
  const std::vector<float> z = {0.2F, 1.1F, 2.0F, -1.0F, 0.5F, 0.4F, -2.0F, 3.0F};
  const std::vector<float> bias = {0.30F, -0.10F, -0.60F, 0.05F, 0.20F, 0.25F, 0.0F, -0.70F};
  check_gates(chosen(v3(8, 4, 2, 2, 2.5F), z, bias), {{0, 1.196830F}, {5, 1.303170F}});
}

TEST_CASE("router vector G2: barred experts lose even to negative scores") {
  const std::vector<float> z = {2.0F, -1.5F, -1.2F, -1.6F, -2.0F, -2.1F, -2.2F, -2.3F};
  const std::vector<float> bias = {0, -0.4F, -0.3F, -0.35F, -0.3F, -0.3F, -0.3F, -0.3F};
  check_gates(chosen(v3(8, 4, 1, 2, 1), z, bias), {{0, 0.828422F}, {1, 0.171578F}});
}

TEST_CASE("router vectors G3 and G4: V3's 256 experts in 8 groups") {
  const auto z3 = t0_scaled("g0.logits", 256, 8192);
  CHECK(z3[0] == 0.9539794921875F);
  CHECK(z3[1] == 1.752197265625F);
  CHECK(z3[2] == -2.6214599609375F);
  check_gates(chosen(v3(256, 8, 4, 8, 2.5F), z3, t0_scaled("g0.bias", 256, 262144)), {{11, 0.318105F},
                                                                                      {80, 0.314155F},
                                                                                      {32, 0.311567F},
                                                                                      {51, 0.318358F},
                                                                                      {165, 0.314953F},
                                                                                      {187, 0.310364F},
                                                                                      {5, 0.303415F},
                                                                                      {78, 0.309083F}});
  check_gates(chosen(v3(256, 8, 4, 8, 2.5F), t0_scaled("g1.logits", 256, 8192), t0_scaled("g1.bias", 256, 262144)),
              {{44, 0.320745F},
               {192, 0.314460F},
               {79, 0.304784F},
               {207, 0.318954F},
               {189, 0.303069F},
               {184, 0.315502F},
               {80, 0.311400F},
               {77, 0.311085F}});
}

TEST_CASE("ungrouped selection takes the global top experts") {
  router_parameters p = v3(256, 8, 4, 8, 2.5F);
  p.group_limited = false;
  const auto gates = chosen(p, t0_scaled("g1.logits", 256, 8192), t0_scaled("g1.bias", 256, 262144));
  for (const int expert : {30, 44, 79, 104, 184, 189, 192, 207}) CHECK(gates.contains(expert));
}

TEST_CASE("router vector G5: softmax, greedy") {
  check_gates(chosen(v2(64, 1, 1, 6, 1), t0_scaled("g2.logits", 64, 8192), {}),
              {{20, 0.114072F}, {15, 0.107909F}, {10, 0.099580F}, {14, 0.096811F}, {32, 0.083345F}, {34, 0.081037F}});
}

TEST_CASE("router vector G6: softmax, groups by their best expert") {
  check_gates(chosen(v2(160, 8, 3, 6, 16), t0_scaled("g3.logits", 160, 8192), {}),
              {{80, 0.606695F}, {7, 0.596779F}, {22, 0.591918F}, {5, 0.573847F}, {8, 0.566608F}, {15, 0.443218F}});
}

TEST_CASE("V2 normalises or scales, V3 does both") {
  const std::vector<float> z = {1, 2, 3, 4};
  const auto sum = [](const std::map<int, float>& gates) {
    float total = 0;
    for (const auto& [expert, gate] : gates) total += gate;
    return total;
  };
  router_parameters p = v2(4, 1, 1, 2, 16);
  p.normalise = true;
  CHECK(sum(chosen(p, z, {})) == doctest::Approx(1));
  CHECK(sum(chosen(v3(4, 1, 1, 2, 2.5F), z, {})) == doctest::Approx(2.5));
}

TEST_CASE("router ties go to the lower index, for experts and for groups") {
  const std::vector<float> equal(64, 0.5F);
  const auto gates = chosen(v3(64, 8, 2, 5, 1), equal, {});
  for (int e = 0; e < 5; ++e) CHECK(gates.contains(e));
}

TEST_CASE("a router takes infinite logits and one group, one expert, groups of one") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> z = {-infinity, 1, infinity, 0};
  CHECK(chosen(v3(4, 1, 1, 2, 1), z, {}).contains(2));
  const auto soft = chosen(v2(4, 1, 1, 1, 1), z, {});
  CHECK(soft.at(2) == 1);
  CHECK(chosen(v3(1, 1, 1, 1, 3), {0.0F}, {}).at(0) == doctest::Approx(1.5));
  CHECK(chosen(v3(4, 4, 2, 2, 1), z, {}).contains(2));
  const std::vector<float> all_masked(6, -infinity);
  check_gates(chosen(v2(6, 1, 1, 2, 1), all_masked, {}), {{0, 1.0F / 6}, {1, 1.0F / 6}});
}

TEST_CASE("a router's choice agrees with a plain sort on random inputs") {
  for (int round = 0; round < 50; ++round) {
    const std::string name = "router." + std::to_string(round);
    const auto z = values(name, 96, 4), bias = values(name + ".bias", 96, 0.2F);
    const auto gates = chosen(v3(96, 6, 3, 7, 1), z, bias);
    std::vector<std::pair<float, int>> groups, experts;
    std::vector<float> c(96);
    for (size_t e = 0; e < 96; ++e) c[e] = 1 / (1 + exp_f32(-z[e])) + bias[e];
    for (int g = 0; g < 6; ++g) {
      std::vector<float> inside(c.begin() + g * 16, c.begin() + (g + 1) * 16);
      std::sort(inside.rbegin(), inside.rend());
      groups.emplace_back(-(inside[0] + inside[1]), g);
    }
    std::sort(groups.begin(), groups.end());
    for (int g = 0; g < 3; ++g)
      for (int e = 0; e < 16; ++e) {
        const int expert = groups[static_cast<size_t>(g)].second * 16 + e;
        experts.emplace_back(-c[static_cast<size_t>(expert)], expert);
      }
    std::sort(experts.begin(), experts.end());
    for (size_t i = 0; i < 7; ++i) CHECK(gates.contains(experts[i].second));
  }
}
