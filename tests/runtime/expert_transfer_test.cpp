#include "runtime/serving/expert_transfer.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <random>

namespace troupe {
namespace {

// A model whose experts are 300 x 200: a packed one does not fit one piece.
model_config shape() {
  model_config config;
  config.hidden_size = 300;
  config.moe_intermediate_size = 200;
  return config;
}

std::shared_ptr<expert_weights> random_expert(const kernels::compute& math, int width, int hidden) {
  std::mt19937_64 draw(5);
  const auto matrix = [&](int n, int k) {
    std::vector<float> values(static_cast<size_t>(n) * static_cast<size_t>(k));
    for (auto& value : values) value = static_cast<float>(draw() % 1000) / 500.0F - 1.0F;
    return math.pack({.dtype = kernels::weight_dtype::f32,
                      .data = reinterpret_cast<const std::byte*>(values.data()),
                      .n = n,
                      .k = k},
                     math.preferred_format());
  };
  auto made = std::make_shared<expert_weights>();
  made->gate = matrix(width, hidden);
  made->up = matrix(width, hidden);
  made->down = matrix(hidden, width);
  return made;
}

bool same(const kernels::packed_matrix& a, const kernels::packed_matrix& b) {
  return a.n() == b.n() && a.k() == b.k() && a.format() == b.format() && a.bytes() == b.bytes() &&
         std::memcmp(a.data(), b.data(), a.bytes()) == 0;
}

}  // namespace

TEST_CASE("an expert arrives piece by piece with every byte, however often a piece comes") {
  const auto config = shape();
  const auto math = kernels::compute::make(kernels::profile::f32);
  const auto sent = random_expert(*math, 200, 300);
  buffer_pool pool(4U << 20U);
  expert_arrival arrival(config, *math, 3, 7, 11);
  int pieces = 0;
  while (!arrival.complete()) {
    const auto request = arrival.request();
    const auto piece = answer_request(request.header, sent.get(), *math, pool);
    REQUIRE(piece);
    CHECK(validate(*piece));
    const auto taken = arrival.take(*piece);
    REQUIRE(taken);
    CHECK(*taken);
    CHECK(!*arrival.take(*piece));  // again: not what is asked for now
    ++pieces;
  }
  CHECK(pieces == static_cast<int>((sent->bytes() + piece_bytes_max - 1) / piece_bytes_max));
  CHECK(pieces > 1);
  const auto got = arrival.finish();
  CHECK(same(got->gate, sent->gate));
  CHECK(same(got->up, sent->up));
  CHECK(same(got->down, sent->down));
}

TEST_CASE("a source without the expert says so, and one without memory says nothing") {
  const auto config = shape();
  const auto math = kernels::compute::make(kernels::profile::f32);
  const auto sent = random_expert(*math, 200, 300);
  expert_arrival arrival(config, *math, 0, 1, 1);
  buffer_pool small(1024);
  CHECK(!answer_request(arrival.request().header, sent.get(), *math, small));
  const auto refusal = answer_request(arrival.request().header, nullptr, *math, small);
  REQUIRE(refusal);
  CHECK(arrival.take(*refusal).failure().code == errc::unavailable);
}

TEST_CASE("pieces that contradict the model, the profile or each other are refused") {
  const auto config = shape();
  const auto math = kernels::compute::make(kernels::profile::f32);
  buffer_pool pool(8U << 20U);
  const auto sent = random_expert(*math, 200, 300);
  const auto refused = [&](auto&& change, const expert_weights& weights) {
    expert_arrival arrival(config, *math, 0, 1, 1);
    auto piece = *answer_request(arrival.request().header, &weights, *math, pool);
    piece_head head;
    std::memcpy(&head, piece.payload->data, sizeof head);
    change(head, piece);
    std::memcpy(piece.payload->data, &head, sizeof head);
    const auto taken = arrival.take(piece);
    return taken ? std::string() : taken.failure().message;
  };
  const auto contains = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  CHECK(refused([](piece_head&, micro_batch&) {}, *sent).empty());
  CHECK(contains(refused([](piece_head& head, micro_batch&) { ++head.layout; }, *sent), "another layout"));
  CHECK(contains(refused([](piece_head& head, micro_batch&) { head.matrices[1].format = 9; }, *sent), "format"));
  CHECK(contains(refused([](piece_head& head, micro_batch&) { head.matrices[2].bytes = uint64_t{1} << 40U; }, *sent),
                 "size does not fit"));
  CHECK(contains(refused([](piece_head& head, micro_batch&) { head.matrices[0].bytes = 0; }, *sent), "size"));
  CHECK(contains(refused([](piece_head&, micro_batch&) {}, *random_expert(*math, 300, 200)), "shape"));
  CHECK(contains(refused([](piece_head&, micro_batch& piece) { piece.payload->size = 10; }, *sent), "empty"));
  CHECK(contains(refused([](piece_head& head, micro_batch&) { head.matrices[0].bytes = 16; }, *sent), "size"));
  CHECK(contains(refused([](piece_head& head, micro_batch&) { head.matrices[0].storage = 7; }, *sent),
                 "stored in a way"));
}

TEST_CASE("a last piece that is longer than what is missing is refused") {
  const auto config = shape();
  const auto math = kernels::compute::make(kernels::profile::f32);
  buffer_pool pool(8U << 20U);
  const auto sent = random_expert(*math, 200, 300);
  expert_arrival arrival(config, *math, 0, 1, 1);
  const auto first = *answer_request(arrival.request().header, sent.get(), *math, pool);
  auto piece = first;
  while (sent->bytes() - arrival.request().header.step >= piece_bytes_max) {
    piece.header.step = arrival.request().header.step;
    REQUIRE(*arrival.take(piece));
  }
  piece.header.step = arrival.request().header.step;
  const auto taken = arrival.take(piece);
  REQUIRE(!taken);
  CHECK(taken.failure().message.find("too long") != std::string::npos);
}

}  // namespace troupe
