// Packed weights that the processes of one machine keep once.
//
// Every node of a cluster packs the same attention, shared experts and head from the same checkpoint. The first process
// puts them into sealed memory (memfd) on huge pages; the others find it among the files that their user's processes
// hold open (/proc) and map it. Nothing is left behind when the last one ends, however it ends.
//
// Layout: `header`; weights, each at a multiple of 64 bytes; the directory, JSON:
// {"key": ..., "weights": {name: [format, storage, n, k, offset, bytes]}}.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "kernels/compute.hpp"
#include "runtime/error.hpp"

namespace troupe {

// What packed weights depend on: the program, its numeric profile and the checkpoint's files (name, inode, size,
// times). Empty when the system does not tell. Reads the directory.
std::string packing_key(const std::filesystem::path& model, const kernels::compute& math);

class shared_weights {
 public:
  // What a process of this user keeps under this key or, when none does, room to put it; then other callers for this
  // model wait, `patience` long at most, until this one has called `seal` or gone. Null when it took longer and where
  // the system gives shared memory no huge pages (Linux before 6.1): the caller packs for itself. Thread: any; blocks.
  static std::shared_ptr<shared_weights> open(const std::filesystem::path& model, const std::string& key,
                                              std::chrono::milliseconds patience);
  shared_weights(const shared_weights&) = delete;
  shared_weights& operator=(const shared_weights&) = delete;
  ~shared_weights();

  // The weight of that name, its bytes here; empty when there is none, or none that this profile can use.
  kernels::packed_matrix find(const std::string& name, const kernels::compute& math) const;
  // Moves a weight here before `seal`; as it was when there is no room or it is too late. Threads: any.
  kernels::packed_matrix keep(const std::string& name, kernels::packed_matrix packed);
  // No byte changes from now on, and others may find them. Requires: no `keep` at the same time. Fails: internal (the
  // system refuses; the weights stay usable here).
  result<void> seal();

  uint64_t bytes() const { return used_; }
  // Whether another process packed them.
  bool found() const { return found_; }

 private:
  struct entry {
    kernels::weight_format format = kernels::weight_format::f32;
    uint32_t storage = 0;
    int n = 0;
    int k = 0;
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  shared_weights() = default;
  static std::shared_ptr<shared_weights> attach(int file, const std::string& key);
  static std::shared_ptr<shared_weights> make(const std::string& key);
  bool reserve(uint64_t bytes);
  bool grow(uint64_t end);
  bool map_readable();
  bool read_directory();
  result<void> write_directory();
  result<void> forbid_writing();

  std::string key_;
  int file_ = -1;  // read-only once sealed
  int turn_ = -1;  // the model's directory, locked while this process packs
  std::byte* reserved_ = nullptr;
  uint64_t reserved_bytes_ = 0;
  std::byte* base_ = nullptr;  // within, at a huge page's boundary
  uint64_t size_ = 0;          // mapped from there
  uint64_t used_ = 0;
  bool found_ = false;
  bool sealed_ = false;
  bool full_ = false;  // the system gave no more huge pages
  std::map<std::string, entry, std::less<>> directory_;
  mutable std::mutex mutex_;
};

}  // namespace troupe
