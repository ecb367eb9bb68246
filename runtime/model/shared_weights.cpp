#include "runtime/model/shared_weights.hpp"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/model/json_text.hpp"

namespace troupe {

namespace {

namespace fs = std::filesystem;

#ifndef MADV_COLLAPSE
constexpr int MADV_COLLAPSE = 25;  // Linux 6.1
#endif

constexpr uint64_t huge_page = uint64_t{2} << 20U;
constexpr uint64_t growth_max = 16 * huge_page;
constexpr uint64_t room = uint64_t{1} << 40U;  // of addresses, not of memory
constexpr uint64_t alignment = 64;
constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

struct header {
  uint64_t magic = 0x3130574550555254;  // "TRUPEW01"
  uint64_t directory_offset = 0;
  uint64_t directory_bytes = 0;
  uint64_t unused[5] = {};
};
static_assert(sizeof(header) == alignment);

constexpr uint64_t round_up(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

std::string file_name(const std::string& key) {
  const auto hash = XXH3_128bits(key.data(), key.size());
  char name[64];
  std::snprintf(name, sizeof name, "troupe-weights-%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return name;
}

std::string identity(const fs::path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0) return {};
  std::string text = file.filename().string();
  for (const int64_t part :
       {static_cast<int64_t>(status.st_dev), static_cast<int64_t>(status.st_ino), static_cast<int64_t>(status.st_size),
        static_cast<int64_t>(status.st_mtim.tv_sec), static_cast<int64_t>(status.st_mtim.tv_nsec),
        static_cast<int64_t>(status.st_ctim.tv_sec), static_cast<int64_t>(status.st_ctim.tv_nsec)})
    text += " " + std::to_string(part);
  return text + "\n";
}

// One process at a time packs a model's weights. -1: not within `patience`.
int take_turn(const fs::path& model, std::chrono::milliseconds patience) {
  const int directory = ::open(model.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return -1;
  const auto until = std::chrono::steady_clock::now() + patience;
  while (::flock(directory, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK || std::chrono::steady_clock::now() >= until) {
      ::close(directory);
      return -1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return directory;
}

// Sealed memory of that name which a process of this user holds; -1: none does.
int search_processes(const std::string& name) {
  const std::string wanted = "/memfd:" + name + " (deleted)";
  std::error_code ignored;  // processes end meanwhile, and others' may not be looked into
  for (fs::directory_iterator process("/proc", ignored), end; !ignored && process != end; process.increment(ignored)) {
    struct stat status {};
    if (process->path().filename().string().find_first_not_of("0123456789") != std::string::npos ||
        ::stat(process->path().c_str(), &status) != 0 || status.st_uid != ::geteuid())
      continue;
    std::error_code gone;
    for (fs::directory_iterator file(process->path() / "fd", gone), last; !gone && file != last; file.increment(gone)) {
      std::error_code unreadable;
      if (fs::read_symlink(file->path(), unreadable) != wanted) continue;
      const int opened = ::open(file->path().c_str(), O_RDONLY | O_CLOEXEC);
      if (opened < 0) continue;
      if (::fstat(opened, &status) == 0 && status.st_uid == ::geteuid() &&
          (::fcntl(opened, F_GET_SEALS) & seals) == seals)
        return opened;
      ::close(opened);
    }
  }
  return -1;
}

error refusal(const char* what) {
  return error{errc::internal, std::string("packed weights cannot be shared with other processes: ") + what + ": " +
                                   std::generic_category().message(errno)};
}

}  // namespace

std::string packing_key(const fs::path& model, const kernels::compute& math) {
  std::string key = identity("/proc/self/exe");
  if (key.empty()) return {};
  key += std::string(math.description()) + "\n";
  std::vector<fs::path> files;
  std::error_code failed;
  for (fs::directory_iterator file(model, failed), end; !failed && file != end; file.increment(failed))
    if (const auto kind = file->path().extension(); kind == ".safetensors" || kind == ".json")
      files.push_back(file->path());
  if (failed) return {};
  std::sort(files.begin(), files.end());
  for (const auto& file : files) key += identity(file);
  return key;
}

shared_weights::~shared_weights() {
  if (reserved_ != nullptr) ::munmap(reserved_, reserved_bytes_);
  if (file_ >= 0) ::close(file_);
  if (turn_ >= 0) ::close(turn_);
}

std::shared_ptr<shared_weights> shared_weights::open(const fs::path& model, const std::string& key,
                                                     std::chrono::milliseconds patience) {
  if (key.empty()) return nullptr;
  const int turn = take_turn(model, patience);
  if (turn < 0) return nullptr;
  const int file = search_processes(file_name(key));
  auto opened = file >= 0 ? attach(file, key) : nullptr;
  if (!opened && (opened = make(key)))
    opened->turn_ = turn;
  else
    ::close(turn);
  return opened;
}

std::shared_ptr<shared_weights> shared_weights::attach(int file, const std::string& key) {
  std::shared_ptr<shared_weights> weights(new shared_weights);
  weights->key_ = key;
  weights->file_ = file;
  weights->found_ = weights->sealed_ = true;
  struct stat status {};
  if (::fstat(file, &status) != 0 || status.st_size < static_cast<off_t>(sizeof(header))) return nullptr;
  weights->size_ = static_cast<uint64_t>(status.st_size);
  if (!weights->reserve(weights->size_) || !weights->map_readable() || !weights->read_directory()) return nullptr;
  return weights;
}

std::shared_ptr<shared_weights> shared_weights::make(const std::string& key) {
  std::shared_ptr<shared_weights> weights(new shared_weights);
  weights->key_ = key;
  weights->file_ = ::memfd_create(file_name(key).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  weights->used_ = sizeof(header);
  if (weights->file_ < 0 || !weights->reserve(room) || !weights->grow(weights->used_)) return nullptr;
  return weights;
}

bool shared_weights::reserve(uint64_t bytes) {
  constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* reserved = ::mmap(nullptr, bytes + huge_page, PROT_NONE, flags, -1, 0);
  if (reserved == MAP_FAILED) return false;
  reserved_ = static_cast<std::byte*>(reserved);
  reserved_bytes_ = bytes + huge_page;
  const auto address = reinterpret_cast<uintptr_t>(reserved);
  base_ = reserved_ + (round_up(address, huge_page) - address);
  return true;
}

// Maps whole huge pages up to `end` at least.
bool shared_weights::grow(uint64_t end) {
  if (end <= size_) return true;
  const uint64_t size = std::max(round_up(end, huge_page), size_ + std::min(size_, growth_max));
  if (size > reserved_bytes_ - huge_page || ::ftruncate(file_, static_cast<off_t>(size)) != 0) return false;
  std::byte* const begin = base_ + size_;
  const uint64_t bytes = size - size_;
  if (::mmap(begin, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_, static_cast<off_t>(size_)) ==
      MAP_FAILED)
    return false;
  // The system makes huge pages only of what is there already; without them each process had better have its own.
  for (uint64_t at = 0; at < bytes; at += huge_page) begin[at] = std::byte{0};
  if (::madvise(begin, bytes, MADV_COLLAPSE) != 0) return false;
  size_ = size;
  return true;
}

kernels::packed_matrix shared_weights::keep(const std::string& name, kernels::packed_matrix packed) {
  entry put{packed.format(), packed.parts().storage, packed.n(), packed.k(), 0, packed.bytes()};
  {
    const std::lock_guard lock(mutex_);
    if (sealed_ || full_ || !packed) return packed;
    full_ = !grow(used_ + round_up(put.bytes, alignment));  // and is not tried for each of many more
    if (full_) return packed;
    put.offset = used_;
    used_ += round_up(put.bytes, alignment);
    directory_.emplace(name, put);
  }
  std::memcpy(base_ + put.offset, packed.data(), put.bytes);
  return kernels::borrow_packed(packed, base_ + put.offset);
}

result<void> shared_weights::seal() {
  const std::lock_guard lock(mutex_);
  if (sealed_) return {};
  sealed_ = true;
  auto outcome = write_directory();
  if (outcome) outcome = forbid_writing();
  ::close(std::exchange(turn_, -1));
  return outcome;
}

result<void> shared_weights::write_directory() {
  nlohmann::json weights = nlohmann::json::object();
  for (const auto& [name, one] : directory_)
    weights[name] = {static_cast<uint32_t>(one.format), one.storage, one.n, one.k, one.offset, one.bytes};
  const std::string text = nlohmann::json{{"key", key_}, {"weights", std::move(weights)}}.dump();
  const uint64_t end = used_ + text.size();
  if (!grow(end)) return refusal("no memory for their directory");
  std::memcpy(base_ + used_, text.data(), text.size());
  const header front{.directory_offset = used_, .directory_bytes = text.size()};
  std::memcpy(base_, &front, sizeof front);
  const uint64_t size = round_up(end, huge_page);
  if (size < size_) ::munmap(base_ + size, size_ - size);
  size_ = size;
  return ::ftruncate(file_, static_cast<off_t>(size_)) == 0 ? result<void>() : refusal("ftruncate");
}

// What can still be written cannot be sealed, and any mapping of a file that was opened for writing counts as such.
result<void> shared_weights::forbid_writing() {
  const int readable = ::open(("/proc/self/fd/" + std::to_string(file_)).c_str(), O_RDONLY | O_CLOEXEC);
  if (readable < 0) return refusal("opening them again");
  const int writable = std::exchange(file_, readable);
  auto outcome =
      map_readable() && ::fcntl(writable, F_ADD_SEALS, seals | F_SEAL_SEAL) == 0 ? result<void>() : refusal("sealing");
  ::close(writable);
  return outcome;
}

bool shared_weights::map_readable() {
  return ::mmap(base_, size_, PROT_READ, MAP_SHARED | MAP_FIXED | MAP_POPULATE, file_, 0) != MAP_FAILED;
}

// Another process wrote it, so whatever does not fit is as if it were not there.
bool shared_weights::read_directory() {
  header front;
  std::memcpy(&front, base_, sizeof front);
  if (front.magic != header().magic || front.directory_offset > size_ ||
      front.directory_bytes > size_ - front.directory_offset)
    return false;
  const auto parsed = parse_json({reinterpret_cast<const char*>(base_) + front.directory_offset, front.directory_bytes},
                                 "the directory of shared weights");
  if (!parsed || !parsed->is_object() || !parsed->contains("key") || (*parsed)["key"] != key_ ||
      !parsed->contains("weights") || !(*parsed)["weights"].is_object())
    return false;
  for (const auto& [name, one] : (*parsed)["weights"].items()) {
    if (!one.is_array() || one.size() != 6) return false;
    for (const auto& field : one)
      if (!field.is_number_unsigned()) return false;
    entry found{static_cast<kernels::weight_format>(one[0].get<uint32_t>()),
                one[1].get<uint32_t>(),
                one[2].get<int>(),
                one[3].get<int>(),
                one[4].get<uint64_t>(),
                one[5].get<uint64_t>()};
    if (found.n < 1 || found.k < 1 || found.offset % alignment != 0 || found.offset > front.directory_offset ||
        found.bytes > front.directory_offset - found.offset ||
        found.bytes < static_cast<uint64_t>(found.n) * static_cast<uint64_t>(found.k))  // no code has less than a byte
      return false;
    directory_.emplace(name, found);
  }
  used_ = front.directory_offset;
  return true;
}

kernels::packed_matrix shared_weights::find(const std::string& name, const kernels::compute& math) const {
  if (!found_) return {};
  const auto at = directory_.find(name);
  if (at == directory_.end()) return {};
  const entry& one = at->second;
  const auto like = math.pack_room(one.format, one.storage, one.n, one.k);
  if (!like || like.bytes() != one.bytes) return {};
  return kernels::borrow_packed(like, base_ + one.offset);
}

}  // namespace troupe
