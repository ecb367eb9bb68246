#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "tests/tidy/rules.hpp"

namespace fs = std::filesystem;
using namespace troupe::tidy;

namespace {

struct file {
  std::string path;
  std::string text;
};

constexpr std::uintmax_t bytes_max = 1 << 20;  // larger files are data
constexpr int lines_warn = 400;
constexpr int lines_max = 700;

bool is_text(const fs::path& path) {
  static const std::set<std::string> endings = {".cpp", ".hpp",  ".cu",  ".cuh",  ".cmake", ".txt",  ".sh",  ".md",
                                                ".py",  ".yaml", ".yml", ".json", ".js",    ".html", ".css", ".supp"};
  static const std::set<std::string> scripts = {"check", "run"};
  return endings.contains(path.extension().string()) || scripts.contains(path.filename().string());
}

// Every text file of the repository but builds, hidden directories and this test, read once.
const std::vector<file>& tree() {
  static const std::vector<file> files = [] {
    std::vector<file> out;
    const fs::path root = TROUPE_SOURCE_DIR;
    for (auto it = fs::recursive_directory_iterator(root); it != fs::recursive_directory_iterator(); ++it) {
      const auto path = fs::relative(it->path(), root).generic_string();
      const auto name = it->path().filename().string();
      if (it->is_directory()) {
        const bool build = it.depth() == 0 && name.starts_with("build");
        if (build || name.starts_with('.') || name == "__pycache__" || path == "tests/tidy") {
          it.disable_recursion_pending();
        }
        continue;
      }
      if (!it->is_regular_file() || !is_text(it->path()) || it->file_size() > bytes_max) continue;
      std::ifstream in(it->path(), std::ios::binary);
      out.push_back({path, std::string(std::istreambuf_iterator<char>(in), {})});
    }
    std::ranges::sort(out, {}, &file::path);
    return out;
  }();
  return files;
}

void expect_none(const std::function<offences(const file&)>& rule) {
  REQUIRE(tree().size() > 20);
  for (const auto& f : tree()) {
    for (const auto& o : rule(f)) FAIL_CHECK(o.path << ":" << o.line << ": " << o.reason);
  }
}

}  // namespace

TEST_CASE("the tree's includes point one way: kernels, runtime, actors, apps") {
  expect_none([](const file& f) { return include_direction(f.path, f.text); });
}

TEST_CASE("every header opens with a comment, is included once and opens no namespace") {
  expect_none([](const file& f) { return header_form(f.path, f.text); });
}

TEST_CASE("nothing draws unseeded randomness or depends on a library's distributions") {
  expect_none([](const file& f) { return randomness(f.path, f.text); });
}

TEST_CASE("actors and placement read no wall clock") {
  expect_none([](const file& f) { return wall_clocks(f.path, f.text); });
}

TEST_CASE("no notes to oneself, machine paths or registry hosts are left in the tree") {
  expect_none([](const file& f) { return leftovers(f.path, f.text); });
}

TEST_CASE("files are named for a noun of the field") {
  expect_none([](const file& f) { return vague_names(f.path); });
}

TEST_CASE("no source file is longer than 700 lines, and those above 400 are named") {
  for (const auto& f : tree()) {
    if (!is_source(f.path)) continue;
    const int lines = count_lines(f.text);
    if (lines > lines_max) {
      FAIL_CHECK(f.path << ": " << lines << " lines, at most " << lines_max);
    } else if (lines > lines_warn) {
      MESSAGE(f.path << ": " << lines << " lines; look again, it may be two things");
    }
  }
}

TEST_CASE("an include against the direction is found") {
  CHECK(include_direction("kernels/a.cpp", "#include \"runtime/error.hpp\"\n").size() == 1);
  CHECK(include_direction("kernels/a.cpp", "#include <caf/all.hpp>\n").size() == 1);
  CHECK(include_direction("kernels/a.cpp", "#include <thread>\n").size() == 1);
  CHECK(include_direction("runtime/a.cpp", "# include \"actors/node.hpp\"\n").size() == 1);
  CHECK(include_direction("actors/a.cpp", "#include \"apps/http/server.hpp\"\n").size() == 1);
  CHECK(include_direction("actors/a.cpp", "#include <ucp/api/ucp.h>\n").size() == 1);
  CHECK(include_direction("actors/a.cpp", "#include \"node.hpp\"\n").size() == 1);
  CHECK(include_direction("actors/a.cpp", "#include <caf/all.hpp>\n#include \"runtime/error.hpp\"\n").empty());
  CHECK(include_direction("kernels/a.cpp", "#include <immintrin.h>\n#include \"kernels/compute.hpp\"\n").empty());
}

TEST_CASE("clocks and randomness are found in code and not in comments or literals") {
  CHECK(wall_clocks("actors/a.cpp", "auto t = std::chrono::steady_clock::now();\n").size() == 1);
  CHECK(wall_clocks("actors/a.cpp", "auto t = std::time(nullptr);\n").size() == 1);
  CHECK(wall_clocks("runtime/placement/a.cpp", "std::chrono::system_clock clock;\n").size() == 1);
  CHECK(wall_clocks("actors/a.cpp", "step.time(); send_time(); // time()\nlog(\"time()\");\n").empty());
  CHECK(wall_clocks("runtime/device/a.cpp", "auto t = std::chrono::steady_clock::now();\n").empty());
  CHECK(randomness("runtime/a.cpp", "std::uniform_int_distribution<int> d;\n").size() == 1);
  CHECK(randomness("runtime/a.cpp", "int i = 1'000; /* std::rand() */ int j = rand();\n").size() == 1);
  CHECK(randomness("actors/shard.cpp", "std::random_device d;\n").size() == 1);
  CHECK(randomness("runtime/seed.cpp", "std::random_device d;\n").empty());
  CHECK(randomness("apps/serve.cpp", "std::random_device d;\n").empty());
  CHECK(randomness("actors/a.cpp", "load_distribution d;\n").empty());
}

TEST_CASE("a header that opens a namespace or says nothing is found") {
  CHECK(header_form("runtime/a.hpp", "// A thing.\n#pragma once\nusing namespace std;\n").size() == 1);
  CHECK(header_form("runtime/a.hpp", "#pragma once\n").size() == 1);
  CHECK(header_form("runtime/a.hpp", "// A thing.\n").size() == 1);
  CHECK(header_form("runtime/a.hpp", "// A thing; using namespace is not here.\n#pragma once\n").empty());
}

TEST_CASE("leftovers and vague names are found") {
  CHECK(leftovers("docs/a.md",
                  "see /"
                  "work/x\n")
            .size() == 1);
  CHECK(leftovers("docs/a.md", "TODO: write\n").size() == 1);
  CHECK(leftovers("docs/a.md", "a framework/of/its/own\n").empty());
  CHECK(vague_names("runtime/wire_utils.cpp").size() == 1);
  CHECK(vague_names("runtime/wire.cpp").empty());
}

TEST_CASE("blanking comments and literals keeps lines and code") {
  CHECK(code_only("a /* b\nc */ d // e\nf") == "a     \n     d     \nf");
  CHECK(code_only("x = \"a\\\"b\"; y") == "x = \"    \"; y");
  CHECK(code_only("R\"(a\"b)\" c") == "R\"(   )\" c");
  CHECK(code_only("1'000 + 'a'") == "1'000 + ' '");
}
