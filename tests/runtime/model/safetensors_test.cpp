#include "runtime/model/safetensors.hpp"

#include <doctest/doctest.h>

#include <optional>

#include "runtime/model/safetensors_header.hpp"
#include "tests/runtime/model/samples.hpp"

using namespace troupe;
using nlohmann::json;

namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

// The sentence with which a file of this header and so many data bytes is refused, with its code.
error refusal(std::string_view header, size_t data_bytes) {
  const std::string file = samples::safetensors_file(header, data_bytes);
  const auto parsed = parse_safetensors_header(bytes_of(file));
  return parsed ? error{errc::internal, "accepted"} : parsed.failure();
}

bool mentions(const error& failure, std::string_view part) { return failure.message.find(part) != std::string::npos; }

constexpr std::string_view two_tensors =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
    R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"e":{"dtype":"I8","shape":[0,7],"data_offsets":[16,16]}}  )";

}  // namespace

TEST_CASE("A safetensors file gives names, shapes and exact bytes") {
  const samples::temporary_directory directory;
  directory.write("model.safetensors", samples::safetensors_file(two_tensors, 16));
  auto opened = checkpoint::open(directory.path());
  REQUIRE(opened);
  CHECK(opened->size() == 3);
  CHECK(opened->data_bytes() == 16);
  CHECK(opened->names() == std::vector<std::string_view>{"a", "b", "e"});
  CHECK(opened->find("c") == nullptr);
  const tensor_view* b = opened->find("b");
  REQUIRE(b != nullptr);
  CHECK(b->dtype == tensor_dtype::bf16);
  CHECK(b->shape == std::vector<int64_t>{2, 3});
  CHECK(b->elements() == 6);
  CHECK(b->data.size() == 12);
  CHECK(static_cast<int>(b->data[0]) == 4);
  CHECK(static_cast<int>(b->data[11]) == 15);
  CHECK(opened->find("a")->elements() == 1);
  CHECK(opened->find("e")->data.empty());
}

TEST_CASE("Views outlive the checkpoint while its mappings are kept alive") {
  const samples::temporary_directory directory;
  directory.write("model.safetensors", samples::safetensors_file(two_tensors, 16));
  std::optional<result<checkpoint>> opened = checkpoint::open(directory.path());
  REQUIRE(*opened);
  const tensor_view view = *(*opened)->find("b");
  const std::shared_ptr<const void> alive = (*opened)->keep_alive();
  opened.reset();
  CHECK(static_cast<int>(view.data[0]) == 4);
}

TEST_CASE("An empty header over no data is a checkpoint without tensors") {
  const std::string file = samples::safetensors_file("{}", 0);
  const auto parsed = parse_safetensors_header(bytes_of(file));
  REQUIRE(parsed);
  CHECK(parsed->empty());
}

TEST_CASE("A header length beyond the file or the format is refused") {
  for (const uint64_t length : {uint64_t{11}, uint64_t{100'000'001}, UINT64_MAX, UINT64_MAX - 7}) {
    std::string file;
    for (int i = 0; i < 8; ++i) file += static_cast<char>(length >> (8 * i) & 0xFF);
    file += "{}        ";
    const auto parsed = parse_safetensors_header(bytes_of(file));
    REQUIRE_FALSE(parsed);
    CHECK(mentions(parsed.failure(), "claims"));
  }
  for (const std::string file : {"", "1234567"}) CHECK_FALSE(parse_safetensors_header(bytes_of(file)));
}

TEST_CASE("A header that does not begin with a brace is refused") {
  for (const char* header : {"", " {}", "[]", "\xEF\xBB\xBF{}"}) {
    CAPTURE(std::string(header));
    CHECK(mentions(refusal(header, 0), "begin with"));
  }
}

TEST_CASE("Every way to break a header is refused with its own sentence") {
  struct broken {
    const char* header;
    size_t data_bytes;
    const char* sentence;
  };
  const broken cases[] = {
      {R"({"a":)", 0, "valid JSON"},
      {R"({} x)", 0, "valid JSON"},
      {R"({"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"I8","shape":[1],"data_offsets":[1,2]}})",
       2, "twice"},
      {R"({"a":{"dtype":"I8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", 1, "twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", 0, "twice"},
      {R"({"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"I8","shape":[1],"data_offsets":[2,3]}})",
       3, "gap"},
      {R"({"a":{"dtype":"I8","shape":[1],"data_offsets":[1,2]}})", 2, "gap"},
      {R"({"a":{"dtype":"I8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"I8","shape":[2],"data_offsets":[1,3]}})",
       3, "inside"},
      {R"({"a":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}})", 1, "incomplete"},
      {R"({"a":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}})", 3, "describes"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,2]}})", 2, "need"},
      {R"({"a":{"dtype":"I8","shape":[4],"data_offsets":[4,0]}})", 4, "ends before"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0, "overflow"},
      {R"({"a":{"dtype":"I8","shape":[18446744073709551615],"data_offsets":[0,0]}})", 0, "too large"},
      {R"({"a":{"dtype":"I8","shape":[99999999999999999999],"data_offsets":[0,0]}})", 0, "fraction"},
      {R"({"a":{"dtype":"I7","shape":[1],"data_offsets":[0,1]}})", 1, "unknown dtype"},
      {R"({"a":{"dtype":"I8","shape":[-1],"data_offsets":[0,1]}})", 1, "negative"},
      {R"({"a":{"dtype":"I8","shape":[1],"data_offsets":[-1,0]}})", 1, "negative"},
      {R"({"a":{"dtype":"I8","shape":[1.0],"data_offsets":[0,1]}})", 1, "fraction"},
      {R"({"a":{"dtype":"I8","shape":[[1]],"data_offsets":[0,1]}})", 1, "array"},
      {R"({"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1,2]}})", 1, "more than two"},
      {R"({"a":{"dtype":"I8","shape":[1],"data_offsets":[0]}})", 1, "two"},
      {R"({"a":{"dtype":"I8","shape":[1]}})", 1, "lacks"},
      {R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,1]}})", 1, "number"},
      {R"({"a":{"dtype":"I8","shape":"x","data_offsets":[0,1]}})", 1, "string"},
      {R"({"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1],"extra":1}})", 1, "unknown field"},
      {R"({"a":{"dtype":{"x":1},"shape":[1],"data_offsets":[0,1]}})", 1, "object"},
      {R"({"a":[1]})", 1, "array"},
      {R"({"a":null})", 1, "null"},
      {R"({"a":true})", 1, "boolean"},
      {R"({"__metadata__":{"x":{"y":1}}})", 0, "object"},
      {R"({"__metadata__":7})", 0, "number"},
      {R"({"a":{"dtype":"I8","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})", 1, "dimensions"},
  };
  for (const broken& one : cases) {
    CAPTURE(std::string(one.header));
    const error failure = refusal(one.header, one.data_bytes);
    CAPTURE(failure.message);
    CHECK(failure.code == errc::malformed);
    CHECK(mentions(failure, one.sentence));
  }
  CHECK(refusal(R"({"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})", 1).code == errc::unsupported);
  CHECK(mentions(refusal("{\"a\":" + std::string(1000, '['), 0), "array"));
}

TEST_CASE("A sharded checkpoint takes each tensor from the shard that the index names") {
  const samples::temporary_directory directory;
  directory.write("one.safetensors",
                  samples::safetensors_file(R"({"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},)"
                                            R"("x":{"dtype":"I8","shape":[1],"data_offsets":[1,2]}})",
                                            2));
  directory.write("two.safetensors",
                  samples::safetensors_file(R"({"a":{"dtype":"I8","shape":[2],"data_offsets":[0,2]},)"
                                            R"("b":{"dtype":"I8","shape":[3],"data_offsets":[2,5]}})",
                                            5));
  const auto write_index = [&](std::string_view map) {
    directory.write("model.safetensors.index.json", R"({"metadata":{},"weight_map":)" + std::string(map) + "}");
  };
  write_index(R"({"a":"one.safetensors","b":"two.safetensors"})");
  const auto opened = checkpoint::open(directory.path());
  REQUIRE(opened);
  CHECK(opened->size() == 2);
  CHECK(opened->find("a")->shape == std::vector<int64_t>{1});
  CHECK(opened->find("x") == nullptr);

  struct refused {
    const char* map;
    const char* sentence;
    errc code;
  };
  const refused cases[] = {
      {R"({"a":"two.safetensors","missing":"one.safetensors"})", "does not hold", errc::malformed},
      {R"({"a":"../one.safetensors"})", "same directory", errc::malformed},
      {R"({"a":"/etc/passwd"})", "same directory", errc::malformed},
      {R"({"a":".."})", "same directory", errc::malformed},
      {R"({"a":""})", "same directory", errc::malformed},
      {R"({"a":"one\u0000.safetensors"})", "same directory", errc::malformed},
      {R"({"a":7})", "same directory", errc::malformed},
      {R"({"a":"one.safetensors","a":"two.safetensors"})", "twice", errc::malformed},
      {R"({})", "weight_map", errc::malformed},
      {R"([])", "weight_map", errc::malformed},
      {R"({"a":"three.safetensors"})", "three.safetensors", errc::not_found},
  };
  for (const refused& one : cases) {
    CAPTURE(std::string(one.map));
    write_index(one.map);
    const auto failed = checkpoint::open(directory.path());
    REQUIRE_FALSE(failed);
    CAPTURE(failed.failure().message);
    CHECK(mentions(failed.failure(), one.sentence));
    CHECK(failed.failure().code == one.code);
  }
}

TEST_CASE("A directory without a checkpoint is not found, and odd files are refused") {
  const samples::temporary_directory directory;
  const auto none = checkpoint::open(directory.path());
  REQUIRE_FALSE(none);
  CHECK(none.failure().code == errc::not_found);
  directory.write("model.safetensors", "");
  CHECK_FALSE(checkpoint::open(directory.path()));
  CHECK_FALSE(checkpoint::open_file(directory.path()));
  directory.write("model.safetensors", "garbage and more garbage");
  const auto garbage = checkpoint::open(directory.path());
  REQUIRE_FALSE(garbage);
  CHECK(mentions(garbage.failure(), "model.safetensors"));
}
