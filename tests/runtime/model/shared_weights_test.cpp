#include "runtime/model/shared_weights.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "kernels/compute.hpp"
#include "runtime/model/config.hpp"
#include "runtime/model/safetensors.hpp"
#include "runtime/model/weights.hpp"
#include "tests/runtime/model/samples.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

const std::filesystem::path tiny_moe = std::filesystem::path(TROUPE_SOURCE_DIR) / "examples" / "tiny-moe";

// Room under this key, or null with a message where the system cannot share.
std::shared_ptr<shared_weights> room(const std::filesystem::path& model, const std::string& key) {
  auto opened = shared_weights::open(model, key, 0ms);
  if (!opened) MESSAGE("skipped: shared memory has no huge pages here (Linux 6.1 and later), or /proc is not there");
  return opened;
}

kernels::packed_matrix some_weight(const kernels::compute& math, int n, int k) {
  std::vector<float> values(static_cast<size_t>(n) * static_cast<size_t>(k));
  std::mt19937 random(5);
  for (float& value : values) value = static_cast<float>(random() % 1000) * 0.001F;
  return math.pack({.dtype = kernels::weight_dtype::f32, .data = values.data(), .n = n, .k = k},
                   math.preferred_format());
}

bool equal(const kernels::packed_matrix& a, const kernels::packed_matrix& b) {
  return a.n() == b.n() && a.k() == b.k() && a.format() == b.format() && a.bytes() == b.bytes() &&
         std::memcmp(a.data(), b.data(), a.bytes()) == 0;
}

// The name of the file in which this process keeps weights, or an empty one.
std::string file_of_weights() {
  for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(file, gone).string();
    const size_t at = target.find("troupe-weights-");
    if (at != std::string::npos) return target.substr(at, target.rfind(" (deleted)") - at);
  }
  return "";
}

// A sealed file of that name and contents, as another process might hold it.
int imitate(const std::string& name, const std::vector<std::byte>& contents, int seals) {
  const int file = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(file >= 0);
  REQUIRE(write(file, contents.data(), contents.size()) == static_cast<ssize_t>(contents.size()));
  REQUIRE(fcntl(file, F_ADD_SEALS, seals) == 0);
  return file;
}

}  // namespace

TEST_CASE("A second load of a model takes the first one's weights, byte for byte") {
  if (!std::filesystem::exists(tiny_moe / "model.safetensors")) return;
  for (const auto profile : {kernels::profile::f32, kernels::profile::amx_bf16}) {
    if (profile == kernels::profile::amx_bf16 && !kernels::cpu_features::detect().amx_bf16()) {
      MESSAGE("skipped: this CPU cannot run profile amx_bf16");
      continue;
    }
    const auto math = kernels::compute::make(profile);
    const auto files = checkpoint::open(tiny_moe);
    const auto config = load_model_config(tiny_moe);
    REQUIRE(files);
    REQUIRE(config);
    const std::string key = packing_key(tiny_moe, *math) + std::to_string(getpid());
    auto first_room = room(tiny_moe, key);
    if (!first_room) return;
    CHECK_FALSE(first_room->found());
    const auto alone = load_shard_weights(*files, *config, *math, run_inline());
    const auto first = load_shard_weights(*files, *config, *math, run_inline(), {}, first_room);
    REQUIRE(alone);
    REQUIRE(first);
    REQUIRE(first_room->seal());

    uint64_t heard = 0;
    const auto second_room = room(tiny_moe, key);
    REQUIRE(second_room);
    CHECK(second_room->found());
    CHECK(second_room->bytes() == first_room->bytes());
    const auto second = load_shard_weights(
        *files, *config, *math, run_inline(), [&](uint64_t bytes) { heard += bytes; }, second_room);
    REQUIRE(second);
    CHECK(heard + (*second)->embedding.data.size() == bytes_to_load(*files, {}));  // the embedding stays in the file

    const auto same = [&](const kernels::packed_matrix& kept, const kernels::packed_matrix& found,
                          const kernels::packed_matrix& own) {
      CHECK(static_cast<bool>(found) == static_cast<bool>(own));
      if (!own) return;
      CHECK(equal(kept, own));
      CHECK(equal(found, own));
    };
    same((*first)->head, (*second)->head, (*alone)->head);
    for (size_t i = 0; i < (*alone)->layers.size(); ++i) {
      CAPTURE(i);
      const auto &a = (*first)->layers[i], &b = (*second)->layers[i], &c = (*alone)->layers[i];
      for (const auto part :
           {&attention_weights::q_a, &attention_weights::q_b, &attention_weights::kv_a, &attention_weights::o})
        same(a.attention.*part, b.attention.*part, c.attention.*part);
      for (const auto halves : {&attention_weights::uk, &attention_weights::uv}) {
        REQUIRE((b.attention.*halves).size() == (c.attention.*halves).size());
        for (size_t head = 0; head < (c.attention.*halves).size(); ++head)
          same((a.attention.*halves)[head], (b.attention.*halves)[head], (c.attention.*halves)[head]);
      }
      for (const auto mlp : {&layer_weights::dense, &layer_weights::shared})
        for (const auto part : {&mlp_weights::gate, &mlp_weights::up, &mlp_weights::down})
          same(a.*mlp.*part, b.*mlp.*part, c.*mlp.*part);
      same(a.router, b.router, c.router);
      CHECK(b.attention.input_norm == c.attention.input_norm);
      for (const auto* part : {&b.attention.uk[0], &b.attention.uv[0], &b.attention.o}) {
        const ptrdiff_t apart = part->data() - (*second)->head.data();
        CHECK(static_cast<uint64_t>(std::abs(apart)) < second_room->bytes());  // where the first process put it
      }
    }
  }
}

TEST_CASE("Whoever wants to pack the same model waits for its turn, and packs when the one before it has gone") {
  const samples::temporary_directory model;
  auto packing = room(model.path(), "the key");
  if (!packing) return;
  CHECK(shared_weights::open(model.path(), "the key", 20ms) == nullptr);
  packing.reset();  // without sealing, as a process that was killed
  const auto next = shared_weights::open(model.path(), "the key", 20ms);
  REQUIRE(next);
  CHECK_FALSE(next->found());
}

TEST_CASE(
    "Weights of another key are not found, and weights outlive the process that packed them while they are used") {
  const samples::temporary_directory model;
  const auto math = kernels::compute::make(kernels::profile::f32);
  const auto own = some_weight(*math, 48, 40);
  auto packing = room(model.path(), "one");
  if (!packing) return;
  const auto kept = packing->keep("w", some_weight(*math, 48, 40));
  CHECK(equal(kept, own));
  REQUIRE(packing->seal());
  CHECK(equal(kept, own));
  CHECK_FALSE(room(model.path(), "another")->found());
  const auto found = room(model.path(), "one");
  REQUIRE(found->found());
  CHECK_FALSE(found->find("v", *math));
  packing.reset();
  CHECK(equal(found->find("w", *math), own));
}

TEST_CASE("What lies under the name but does not fit is as if it were not there") {
  const samples::temporary_directory model;
  const auto math = kernels::compute::make(kernels::profile::f32);
  auto packing = room(model.path(), "mutated");
  if (!packing) return;
  packing->keep("w", some_weight(*math, 48, 40));
  REQUIRE(packing->seal());
  const std::string name = file_of_weights();
  REQUIRE_FALSE(name.empty());
  std::vector<std::byte> good;
  for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(file, gone).string().find(name) == std::string::npos) continue;
    std::ifstream stream(file.path(), std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(stream), {}};
    good.resize(text.size());
    std::memcpy(good.data(), text.data(), text.size());
  }
  packing.reset();
  uint64_t directory = 0;
  std::memcpy(&directory, good.data() + 8, 8);

  constexpr int all = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
  const auto found = [&](const std::vector<std::byte>& contents, int seals) {
    const int file = imitate(name, contents, seals);
    const auto opened = shared_weights::open(model.path(), "mutated", 0ms);
    close(file);
    REQUIRE(opened);
    if (!opened->found()) return false;
    const auto weight = opened->find("w", *math);  // must not crash
    return static_cast<bool>(weight);
  };
  CHECK(found(good, all));
  CHECK_FALSE(found(good, F_SEAL_SHRINK | F_SEAL_GROW));  // somebody may still write it
  CHECK_FALSE(found({good.begin(), good.begin() + 40}, all));
  CHECK_FALSE(found({good.begin(), good.begin() + static_cast<ptrdiff_t>(directory)}, all));

  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text(reinterpret_cast<const char*>(good.data()), good.size());
    const size_t at = text.find(from, directory);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
    std::vector<std::byte> changed(good.size());
    std::memcpy(changed.data(), text.data(), changed.size());
    return found(changed, all);
  };
  CHECK(with("mutated", "mutated"));
  CHECK_FALSE(with("mutated", "mutates"));
  CHECK_FALSE(with(",48,40,", ",96,40,"));
  CHECK_FALSE(with(",40,64,", ",40,65,"));
  CHECK_FALSE(with(",40,64,", ",40,-4,"));
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {  // none may crash
    auto changed = good;
    changed[i % 2 == 0 ? random() % 64 : directory + random() % 100] = static_cast<std::byte>(random());
    found(changed, all);
  }
}
