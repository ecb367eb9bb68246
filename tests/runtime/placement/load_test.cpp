#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>

#include "runtime/placement/load_files.hpp"
#include "runtime/placement/load_generators.hpp"
#include "runtime/placement/random.hpp"
#include "tests/runtime/placement/samples.hpp"

namespace troupe {
namespace {

using testing::made_load;

bool equal(const load_history& a, const load_history& b) {
  const auto same = [](const load_window& x, const load_window& y) {
    return x.rows == y.rows && x.source_rows == y.source_rows && x.pairs.size() == y.pairs.size() &&
           std::equal(x.pairs.begin(), x.pairs.end(), y.pairs.begin(), [](const expert_pair& p, const expert_pair& q) {
             return p.layer == q.layer && p.a == q.a && p.b == q.b && p.tokens == q.tokens;
           });
  };
  return a.layers == b.layers && a.experts == b.experts && a.sources == b.sources &&
         std::equal(a.windows.begin(), a.windows.end(), b.windows.begin(), b.windows.end(), same);
}

load_history full_load() {
  auto load = made_load("domains:layers=3,experts=8,windows=4,sources=3,rows_per_token=2");
  load.windows[1].pairs = {{0, 1, 2, 5}, {2, 0, 7, uint64_t{1} << 40}};
  load.windows[2].rows[3] = uint64_t{1} << 50;
  return load;
}

std::string why_refused(const std::string& bytes) {
  const auto load = parse_load(bytes, "a file");
  return load ? "it was not" : load.failure().message;
}

bool says(const std::string& text, const char* part) {
  INFO(text);
  const bool found = text.find(part) != std::string::npos;
  CHECK(found);
  return found;
}

std::string npy(const std::string& dtype, const std::string& shape, const std::string& data) {
  std::string header = "{'descr': '" + dtype + "', 'fortran_order': False, 'shape': " + shape + ", }";
  header.resize(118, ' ');
  std::string bytes = "\x93NUMPY";
  bytes += '\x01';
  bytes += '\0';
  bytes += static_cast<char>(header.size());
  bytes += '\0';
  return bytes + header + data;
}

template <class Number>
std::string raw(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

std::string file_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_CASE("a load comes back from the binary form as it was, pairs and sources included") {
  const auto load = full_load();
  const auto read = parse_load(to_binary(load), "a file");
  REQUIRE(read);
  CHECK(equal(*read, load));
}

TEST_CASE("a load comes back from CSV as it was, with sources and pairs and without") {
  auto load = full_load();
  load.windows[2].rows[3] = 77;
  for (const bool by_source : {false, true}) {
    auto written = load;
    for (auto& window : written.windows)
      if (!by_source) window.source_rows.clear();
    if (by_source) written.windows[2].rows = load_history(full_load()).windows[2].rows;
    if (by_source) {
      // Rows are the sum of their sources.
      for (auto& window : written.windows)
        for (size_t i = 0; i < window.rows.size(); ++i)
          window.rows[i] = window.source_rows[i] + window.source_rows[24 + i] + window.source_rows[48 + i];
    } else {
      written.sources = 0;
    }
    const auto read = parse_load(to_csv(written), "a file");
    REQUIRE(read);
    CHECK(equal(*read, written));
  }
}

TEST_CASE("a file's form is found by its bytes, and written by its name") {
  const auto load = made_load("zipf:layers=2,experts=8,windows=2,rows_per_token=2");
  for (const char* ending : {".csv", ".load"}) {
    const auto path =
        (std::filesystem::temp_directory_path() / ("troupe_load_" + std::to_string(getpid()))).string() + ending;
    REQUIRE(write_load(load, path));
    const auto read = read_load(path);
    REQUIRE(read);
    CHECK(equal(*read, load));
    CHECK((file_bytes(path).rfind("TRPLOAD1", 0) == 0) == (std::string(ending) == ".load"));
    std::filesystem::remove(path);
  }
  CHECK(read_load("no/such/file").failure().code == errc::not_found);
}

TEST_CASE("a matrix of layers x experts is a load of one window: CSV, JSON, .npy") {
  load_history expected{2, 3, 0, {}};
  expected.windows.push_back({{1, 2, 3, 40, 50, 60}, {}, {}});
  for (const auto& bytes :
       {std::string("1,2,3\n40, 50, 60\n"), std::string("1,2,3\r\n40,50,60"),
        std::string("[[1, 2, 3], [40, 50.2, 60]]"), npy("<i4", "(2, 3)", raw<int32_t>({1, 2, 3, 40, 50, 60})),
        npy("<f8", "(2, 3)", raw<double>({1, 2, 3, 40, 50, 60})),
        npy("<u2", "(1, 2, 3)", raw<uint16_t>({1, 2, 3, 40, 50, 60}))}) {
    const auto read = parse_load(bytes, "a file");
    REQUIRE_MESSAGE(read, (read ? "" : read.failure().message));
    CHECK(equal(*read, expected));
  }
}

TEST_CASE("SGLang's recording is read as torch.save wrote it, without empty steps and dense layers") {
  const auto read = read_load(TROUPE_SOURCE_DIR "/tests/runtime/placement/goldens/sglang_stat.pt");
  REQUIRE_MESSAGE(read, (read ? "" : read.failure().message));
  load_history expected{2, 4, 0, {}};
  expected.windows.push_back({{1, 2, 3, 4, 5, 6, 7, 8}, {}, {}});
  expected.windows.push_back({{9, 10, 11, 12, 13, 14, 15, 300}, {}, {}});
  CHECK(equal(*read, expected));
  const auto json = parse_load(
      R"({"rank": 0, "logical_count": [[[0,0,0,0],[1,2,3,4],[5,6,7,8]], [[0,0,0,0],[0,0,0,0],[0,0,0,0]],
          [[0,0,0,0],[9,10,11,12],[13,14,15,300]]]})",
      "a file");
  REQUIRE(json);
  CHECK(equal(*json, expected));
}

TEST_CASE("a bad file is refused with the place that is bad") {
  says(why_refused("hello\n"), "a file, line 1: this is no load");
  says(why_refused("window,layer,expert,rows\n0,0,0,5\n0,0,x,5\n"), "line 3: there must be 4 numbers");
  says(why_refused("window,layer,expert,rows\n0,0,0,-5\n"), "line 2");
  says(why_refused("window,layer,expert,rows\n0,70000,0,5\n"), "layers and experts to 65534");
  says(why_refused("window,layer,expert,rows\n1000000,60000,60000,5\n"), "must not be above 2^28");
  says(why_refused("window,layer,expert,rows\n999,99,99,5\n"), "too few lines");
  says(why_refused("window,layer,expert,rows\n"), "no rows");
  const std::string rows = "window,layer,expert,rows\n0,0,3,5\nwindow,layer,a,b,tokens\n";
  says(why_refused(rows + "0,0,1,2\n"), "line 4: there must be 5 numbers");
  says(why_refused(rows + "0,0,1,2,5\n\n0,0,2,2,5\n"), "line 6: expert a of a pair must be below b");
  says(why_refused(rows + "0,0,1,4,5\n"), "line 4: the rows before have no such window, layer or expert");
  says(why_refused(rows + "0,1,1,2,5\n"), "line 4: the rows before have no such window, layer or expert");
  says(why_refused(rows + "1,0,1,2,5\n"), "line 4: the rows before have no such window, layer or expert");
  says(why_refused("window,layer,a,b,tokens\n0,0,1,2,5\n"), "line 1: this is no load");
  says(why_refused("1,2\n1,2,3\n"), "line 2: it has 3 experts, the line before 2");
  says(why_refused("[[1, 2], [3]]"), "not all of the same length");
  says(why_refused("[[1, \"x\"]]"), "is not a number");
  says(why_refused("{\"counts\": 1}"), "no \"logical_count\"");
  says(why_refused("[[1, NaN]]"), "not JSON");
  says(why_refused("[[[[[[[[[[[[1]]]]]]]]]]]]"), "nested too deeply");
  says(why_refused(npy("<i4", "(2, 3)", "abc")), "not as long as its shape says");
  says(why_refused(npy(">i4", "(1, 1)", "abcd")), "little-endian");
  says(why_refused(npy("<i4", "(99999999, 99999999)", "abcd")), "shape");
  says(why_refused(npy("<i4", "(1, 1)", raw<int32_t>({-1}))), "from 0 to 2^53");
  says(why_refused(""), "no load");
}

TEST_CASE("damaged files of every form give sentences and never a crash") {
  auto small = full_load();
  small.windows.resize(2);
  const std::vector<std::string> good = {
      to_binary(small), to_csv(small), "[[1, 2, 3], [40, 50.2, 60]]",
      npy("<i4", "(2, 3)", raw<int32_t>({1, 2, 3, 4, 5, 6})),
      file_bytes(TROUPE_SOURCE_DIR "/tests/runtime/placement/goldens/sglang_stat.pt")};
  uint32_t refused = 0;
  for (uint64_t seed = 1; seed <= 5000; ++seed) {
    CAPTURE(seed);
    seeded_random random(seed);
    auto bytes = good[seed % good.size()];
    if (random.below(3) == 0) bytes.resize(random.below(static_cast<uint32_t>(bytes.size())));
    for (uint32_t i = 0; i < random.below(6) && !bytes.empty(); ++i)
      bytes[random.below(static_cast<uint32_t>(bytes.size()))] = static_cast<char>(random.below(256));
    const auto read = parse_load(bytes, "a file");
    if (read) {
      // What was read has its own shape, whatever it says.
      for (const auto& window : read->windows) REQUIRE(window.rows.size() == size_t{read->layers} * read->experts);
    } else {
      ++refused;
      CHECK_FALSE(read.failure().message.empty());
    }
  }
  CHECK(refused > 2000);
}

TEST_CASE("a binary file of damaged bytes is refused by its hash, and false sizes before memory is taken") {
  auto bytes = to_binary(full_load());
  for (size_t i = 0; i < bytes.size(); i += 7) {
    auto damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    CHECK_FALSE(parse_load(damaged, "a file"));
  }
}

TEST_CASE("generated loads are the same for the same seed, and deal out exactly their rows") {
  for (const char* shape : {"uniform", "zipf", "log_normal", "drifting", "bursts", "domains"}) {
    CAPTURE(shape);
    const auto text = std::string(shape) + ":layers=3,experts=16,windows=4,tokens=1001,rows_per_token=3,sources=2";
    const auto load = made_load(text);
    CHECK(equal(load, made_load(text)));
    CHECK_FALSE(equal(load, made_load(text + ",seed=2")));
    for (const auto& window : load.windows)
      for (uint32_t layer = 0; layer < 3; ++layer) {
        const auto from = window.rows.begin() + layer * 16;
        CHECK(std::accumulate(from, from + 16, uint64_t{0}) == 3003);
        for (uint32_t expert = 0; expert < 16; ++expert)
          CHECK(window.rows[layer * 16 + expert] ==
                window.source_rows[layer * 16 + expert] + window.source_rows[48 + layer * 16 + expert]);
      }
  }
}

TEST_CASE("a drifting load changes a little from window to window, a log-normal one not at all") {
  const auto constant = made_load("log_normal:layers=1,windows=3");
  CHECK(constant.windows[0].rows == constant.windows[2].rows);
  const auto drifting = made_load("drifting:layers=1,windows=20,memory=0.95");
  const auto apart = [&](size_t a, size_t b) {
    double sum = 0;
    for (size_t i = 0; i < 256; ++i)
      sum += std::abs(std::log(1.0 + static_cast<double>(drifting.windows[a].rows[i])) -
                      std::log(1.0 + static_cast<double>(drifting.windows[b].rows[i]))) /
             256;
    return sum;
  };
  CHECK(apart(0, 1) < 0.5 * apart(0, 19));
  CHECK(apart(0, 1) > 0);
}

TEST_CASE("settings of a generator that make no sense are refused with their name") {
  const auto refused = [](const std::string& text) {
    const auto settings = parse_generator(text);
    if (!settings) return settings.failure().message;
    const auto load = generate_load(*settings);
    return load ? std::string("it was not") : load.failure().message;
  };
  says(refused("normal"), "uniform, zipf, log_normal");
  says(refused("zipf:sigma=1"), "exponent");
  says(refused("uniform:layers=0"), "layers");
  says(refused("uniform:experts=4"), "rows_per_token");
  says(refused("log_normal:sigma=nan"), "sigma");
  says(refused("log_normal:windows=4000000000,layers=4000000000"), "2^28");
  says(refused("bursts:probability=2"), "probability");
}

TEST_CASE("merged windows add up") {
  auto load = full_load();
  load.windows[2].pairs = {{2, 0, 7, 3}, {0, 0, 2, 1}};
  const auto merged = merge_windows(load, 3);
  REQUIRE(merged.windows.size() == 2);
  CHECK(merged.windows[0].rows[5] == load.windows[0].rows[5] + load.windows[1].rows[5] + load.windows[2].rows[5]);
  REQUIRE(merged.windows[0].pairs.size() == 3);
  CHECK(merged.windows[0].pairs[2].tokens == (uint64_t{1} << 40) + 3);
  CHECK(merged.windows[1].rows == load.windows[3].rows);
}

}  // namespace troupe
