#include "tests/bench/start_bench.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "apps/cluster/head.hpp"
#include "runtime/memory/huge_pages.hpp"

namespace troupe {
namespace {

using bench_clock = std::chrono::steady_clock;

double seconds_since(bench_clock::time_point begin) {
  return std::chrono::duration<double>(bench_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Takes as much memory as a start will and gives it back. Without this a virtual machine's host, which takes back
// memory that lay free for a while, makes either figure two or three times larger at random.
void touch_memory(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;
  madvise(memory, bytes, MADV_HUGEPAGE);
  for (size_t at = 0; at < bytes; at += 4096) static_cast<volatile char*>(memory)[at] = 1;
  munmap(memory, bytes);
}

// What a start costs at least.
struct copying {
  double seconds = 0;
  double gigabytes = 0;
  double huge_gigabytes = 0;
};

// Maps a file and copies it with `threads` threads into fresh memory on huge pages, in pieces that stay in a cache.
copying copy_file(const std::filesystem::path& file, uint32_t threads) {
  constexpr size_t huge_page = size_t{2} << 20;
  constexpr size_t piece = size_t{1} << 20;
  const auto begin = bench_clock::now();
  const int handle = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status {};
  if (handle < 0 || fstat(handle, &status) != 0 || status.st_size == 0) return {};
  const auto size = static_cast<size_t>(status.st_size);
  const size_t room = size + 2 * huge_page;
  void* mapped = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, handle, 0);
  void* memory = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  close(handle);
  if (mapped == MAP_FAILED || memory == MAP_FAILED) return {};
  madvise(memory, room, MADV_HUGEPAGE);
  const auto* from = static_cast<const std::byte*>(mapped);
  const auto start = reinterpret_cast<uintptr_t>(memory);
  auto* to = static_cast<std::byte*>(memory) + ((start + huge_page - 1) / huge_page * huge_page - start);
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t at = next.fetch_add(piece); at < size; at = next.fetch_add(piece)) {
      const size_t bytes = std::min(piece, size - at);
      madvise(const_cast<std::byte*>(from) + at, bytes, MADV_POPULATE_READ);
      std::memcpy(to + at, from + at, bytes);
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (uint32_t i = 1; i < threads; ++i) helpers.emplace_back(work);
    work();
  }
  copying done{seconds_since(begin), static_cast<double>(size) / 1e9, static_cast<double>(bytes_on_huge_pages()) / 1e9};
  munmap(mapped, size);
  munmap(memory, room);
  return done;
}

copying copy_checkpoint(const std::string& model, uint32_t threads) {
  copying all;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(model, ignored)) {
    if (entry.path().extension() != ".safetensors") continue;
    const copying one = copy_file(entry.path(), threads);
    all.seconds += one.seconds;
    all.gigabytes += one.gigabytes;
    all.huge_gigabytes = std::max(all.huge_gigabytes, one.huge_gigabytes);
  }
  return all;
}

struct starting {
  double serving_seconds = 0;
  double token_seconds = 0;
  double huge_gigabytes = 0;
};

class first_event {
 public:
  void hear(const generation_event& event) {
    if (std::get_if<generation_accepted>(&event) != nullptr) return;
    const std::lock_guard lock(mutex_);
    if (const auto* failed = std::get_if<generation_failed>(&event)) failure_ = failed->cause;
    heard_ = true;
    changed_.notify_all();
  }

  result<void> wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return heard_; });
    if (failure_) return *failure_;
    return {};
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<error> failure_;
  bool heard_ = false;
};

// Everything from nothing to a token of a prompt of one, as `troupe generate` does it.
result<starting> start_once(head_config config) {
  starting times;
  first_event heard;
  const auto begin = bench_clock::now();
  auto front = head::start(std::move(config), {});
  if (!front) return front.failure();
  generation_request request;
  request.prompt_ids = {3};
  request.max_tokens = 1;
  request.ignore_eos = true;
  (*front)->submit(std::move(request), [&heard](const generation_event& event) { heard.hear(event); });
  while (!(*front)->serving()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  times.serving_seconds = seconds_since(begin);
  if (auto outcome = heard.wait(); !outcome) return outcome.failure();
  times.token_seconds = seconds_since(begin);
  times.huge_gigabytes = static_cast<double>(bytes_on_huge_pages()) / 1e9;
  return times;
}

}  // namespace

int bench_start(const head_config& config, int runs) {
  const uint32_t threads = config.settings.threads_per_node;
  const copying first = copy_checkpoint(config.settings.model, threads);  // into the page cache
  const auto room = static_cast<size_t>(first.gigabytes * 1.3e9);
  std::vector<double> copied;
  std::vector<double> serving;
  std::vector<double> token;
  std::vector<double> ratios;
  std::printf("%-6s %14s %14s %14s %8s\n", "run", "read+copy, s", "serving, s", "first token, s", "ratio");
  for (int run = 0; run < runs; ++run) {
    touch_memory(room);
    const copying copy = copy_checkpoint(config.settings.model, threads);
    touch_memory(room);
    const auto start = start_once(config);
    if (!start || copy.gigabytes == 0) {
      std::fprintf(stderr, "bench_serving: %s\n",
                   start ? "the model has no .safetensors file" : start.failure().message.c_str());
      return 1;
    }
    copied.push_back(copy.seconds);
    serving.push_back(start->serving_seconds);
    token.push_back(start->token_seconds);
    ratios.push_back(start->token_seconds / copy.seconds);
    std::printf("%-6d %14.3f %14.3f %14.3f %8.2f\n", run, copied.back(), serving.back(), token.back(), ratios.back());
    if (run + 1 == runs)
      std::printf(
          "%-6s %14.3f %14.3f %14.3f %8.2f\n%.2f GB of weights; on huge pages: %.2f GB of the copy, %.2f GB "
          "of the start\n",
          "median", median(copied), median(serving), median(token), median(ratios), copy.gigabytes, copy.huge_gigabytes,
          start->huge_gigabytes);
  }
  return 0;
}

}  // namespace troupe
