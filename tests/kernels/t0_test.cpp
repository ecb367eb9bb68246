#include "tests/t0.hpp"

#include <doctest/doctest.h>

#include <array>

using namespace troupe::testing;

TEST_CASE("T0 gives the published checks of MODEL.md 17.1") {
  CHECK(fnv1a("fp8.W") == 10573719938973714262U);
  CHECK(t0_mix(0) == 16294208416658607535U);
  CHECK(t0_mix(1) == 10451216379200822465U);
  const std::array first = {109, 175, 148, 117};
  for (uint64_t i = 0; i < first.size(); ++i) CHECK(t0_k("fp8.W", i) == first[i]);
}

TEST_CASE("T0 picks the value rule by name") {
  const std::array embedding = {-0.2578125F, -0.296875F, 0.8046875F, -0.984375F, 0.5859375F, -0.71875F};
  for (uint64_t i = 0; i < embedding.size(); ++i) CHECK(t0_value("model.embed_tokens.weight", i) == embedding[i]);
  const std::array norm = {0.7734375F, 0.90625F, 0.828125F, 0.96875F};
  for (uint64_t i = 0; i < norm.size(); ++i) CHECK(t0_value("model.norm.weight", i) == norm[i]);
  const std::array bias = {-0.17578125F, -0.119140625F, -0.171875F, 0.154296875F};
  for (uint64_t i = 0; i < bias.size(); ++i)
    CHECK(t0_value("model.layers.1.mlp.gate.e_score_correction_bias", i) == bias[i]);
}
