#include "runtime/wire/micro_batch.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <random>

namespace troupe {
namespace {

// Three rows of 8 BF16 values wanted by four (row, expert) pairs.
micro_batch dispatch_of(buffer_pool& pool) {
  micro_batch message;
  auto& header = message.header;
  header.kind = message_kind::dispatch;
  header.dtype = wire_dtype::bf16;
  header.hidden = 8;
  header.row_count = 3;
  header.pair_count = 4;
  header.payload_bytes = payload_bytes(wire_dtype::bf16, 8, 4, 3);
  message.payload = pool.acquire(header.payload_bytes);
  std::memset(message.payload->data, 0, header.payload_bytes);
  const uint16_t rows_wanted[] = {0, 1, 1, 2};
  for (size_t i = 0; i < 4; ++i) pairs(message)[i].row = rows_wanted[i];
  return message;
}

TEST_CASE("a sealed micro-batch is valid and its parts lie where the format says") {
  buffer_pool pool(1 << 20);
  auto message = dispatch_of(pool);
  seal(message, true);
  CHECK(validate(message));
  CHECK(message.header.payload_bytes == 64 + 3 * 8 * 2);
  CHECK(rows(message) == message.payload->data + 64);
  CHECK(pairs(message).size() == 4);
  CHECK(row_bytes(wire_dtype::fp8, 200, 3) == 3 * 200 + 3 * 2 * 4);
}

TEST_CASE("every damaged byte of a header is noticed") {
  buffer_pool pool(1 << 20);
  auto message = dispatch_of(pool);
  seal(message, false);
  for (size_t i = 0; i < sizeof(micro_batch_header); ++i) {
    auto damaged = message;
    reinterpret_cast<unsigned char*>(&damaged.header)[i] ^= 0x04U;
    CHECK(validate(damaged).failure().code == errc::malformed);
  }
}

TEST_CASE("a damaged payload is noticed when its checksum is set") {
  buffer_pool pool(1 << 20);
  auto message = dispatch_of(pool);
  seal(message, true);
  rows(message)[5] ^= std::byte{1};
  CHECK_FALSE(validate(message));
  CHECK(validate_header(message.header));
  seal(message, true);
  CHECK(validate(message));
}

TEST_CASE("counts that do not agree with the payload are refused") {
  buffer_pool pool(1 << 20);
  const auto refused = [&](auto damage) {
    auto message = dispatch_of(pool);
    damage(message);
    seal(message, false);
    return !validate(message);
  };
  CHECK(refused([](micro_batch& m) { m.header.row_count = 2; }));
  CHECK(refused([](micro_batch& m) { m.header.pair_count = 40; }));
  CHECK(refused([](micro_batch& m) { m.header.hidden = 0; }));
  CHECK(refused([](micro_batch& m) { m.header.hidden = 0xffffffffU; }));
  CHECK(refused([](micro_batch& m) { m.header.row_count = 0xffffffffU; }));
  CHECK(refused([](micro_batch& m) { m.header.dtype = static_cast<wire_dtype>(7); }));
  CHECK(refused([](micro_batch& m) { m.header.kind = message_kind::combine; }));  // 4 rows, not 3
  CHECK(refused([](micro_batch& m) { m.header.payload_bytes += 1; }));
  CHECK(refused([](micro_batch& m) { pairs(m)[3].row = 3; }));
  CHECK(refused([](micro_batch& m) { m.payload = {}; }));
  CHECK_FALSE(refused([](micro_batch&) {}));
}

TEST_CASE("a refusal is a combine without a payload") {
  buffer_pool pool(1 << 20);
  micro_batch refusal;
  refusal.header.kind = message_kind::combine;
  refusal.header.status = combine_status::stale_epoch;
  seal(refusal, true);
  CHECK(validate(refusal));
  refusal.payload = pool.acquire(8);
  refusal.header.payload_bytes = 8;
  seal(refusal, false);
  CHECK_FALSE(validate(refusal));
}

TEST_CASE("random headers never make validation read outside the payload") {
  buffer_pool pool(1 << 20);
  std::mt19937_64 random(7);
  int valid = 0;
  for (int i = 0; i < 20'000; ++i) {
    auto message = dispatch_of(pool);
    auto* const bytes = reinterpret_cast<unsigned char*>(&message.header);
    for (int k = 0; k < 3; ++k) bytes[4 + random() % 84] = static_cast<unsigned char>(random());
    if (random() % 2 == 0) message.header.payload_bytes = message.payload->size;
    message.header.flags = 0;
    seal(message, false);
    if (validate(message)) ++valid;
  }
  CHECK(valid > 0);
}

}  // namespace
}  // namespace troupe
