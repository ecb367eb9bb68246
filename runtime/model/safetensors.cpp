#include "runtime/model/safetensors.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "runtime/model/json_text.hpp"
#include "runtime/model/safetensors_header.hpp"

namespace troupe {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr size_t index_bytes_max = size_t{256} << 20;
constexpr size_t shards_max = 16384;
constexpr const char* index_name = "model.safetensors.index.json";
constexpr const char* single_name = "model.safetensors";

// A file mapped for reading.
class mapping {
 public:
  mapping(const std::byte* data, size_t size) : data_(data), size_(size) {}
  mapping(mapping&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
  mapping& operator=(mapping&&) = delete;
  ~mapping() {
    if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_;
  size_t size_;
};

class file_handle {
 public:
  explicit file_handle(const fs::path& file) : handle_(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  file_handle(const file_handle&) = delete;
  file_handle& operator=(const file_handle&) = delete;
  ~file_handle() {
    if (handle_ >= 0) ::close(handle_);
  }
  int get() const { return handle_; }

 private:
  int handle_;
};

error system_failure(const fs::path& file, int number) {
  const errc code = number == ENOENT ? errc::not_found : errc::internal;
  return error{code, "Cannot open " + shown(file.string()) + ": " + std::generic_category().message(number) + "."};
}

result<mapping> map_file(const fs::path& file) {
  const file_handle handle(file);
  struct stat status {};
  if (handle.get() < 0 || ::fstat(handle.get(), &status) != 0) return system_failure(file, errno);
  if (!S_ISREG(status.st_mode)) return error{errc::malformed, shown(file.string()) + " is not a regular file."};
  if (status.st_size == 0) return error{errc::malformed, shown(file.string()) + " is empty."};
  const auto size = static_cast<size_t>(status.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, handle.get(), 0);
  if (data == MAP_FAILED) return system_failure(file, errno);
  return mapping(static_cast<const std::byte*>(data), size);
}

// Tensor name -> name of the file in the same directory that holds it.
using weight_map = std::map<std::string, std::string, std::less<>>;

// An index could otherwise make us read any file of the machine.
bool is_plain_name(std::string_view file) {
  return !file.empty() && file != "." && file != ".." && file.find_first_of(std::string_view("/\\\0", 3)) == file.npos;
}

result<weight_map> parse_index(std::string_view text) {
  result<json> parsed = parse_json(text, index_name);
  if (!parsed) return parsed.failure();
  const std::string subject(index_name);
  const json* found = parsed->is_object() && parsed->contains("weight_map") ? &(*parsed)["weight_map"] : nullptr;
  if (found == nullptr || !found->is_object() || found->empty()) {
    return error{errc::malformed, subject + " has no \"weight_map\" object that names tensors."};
  }
  weight_map map;
  for (const auto& [tensor, file] : found->items()) {
    if (!file.is_string() || !is_plain_name(file.get_ref<const std::string&>())) {
      return error{errc::malformed, subject + " puts the tensor " + shown(tensor) +
                                        " into something that is not the name of a file in the same directory."};
    }
    map.emplace(tensor, file.get_ref<const std::string&>());
  }
  return map;
}

}  // namespace

int64_t tensor_view::elements() const { return static_cast<int64_t>(data.size()) / size_of(dtype); }

void populate(const tensor_view& tensor) {
#ifdef MADV_POPULATE_READ
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(tensor.data.data());
  const auto begin = address / page * page;
  ::madvise(reinterpret_cast<void*>(begin), address + tensor.data.size() - begin, MADV_POPULATE_READ);
#endif
}

struct checkpoint::contents {
  std::vector<mapping> mappings;
  std::map<std::string, tensor_view, std::less<>> tensors;

  // Maps a file and adds its tensors; with a `filter`, those that it assigns to `file_name`.
  result<void> add(const fs::path& file, const weight_map* filter) {
    result<mapping> mapped = map_file(file);
    if (!mapped) return mapped.failure();
    const std::span<const std::byte> bytes = mapped->bytes();
    result<std::vector<safetensors_entry>> entries = parse_safetensors_header(bytes);
    if (!entries)
      return error{entries.failure().code, file.filename().string() + ": " + entries.failure().message + "."};
    for (safetensors_entry& entry : *entries) {
      if (filter != nullptr) {
        const auto assigned = filter->find(entry.name);
        if (assigned == filter->end() || assigned->second != file.filename().string()) continue;
      }
      tensor_view view{entry.dtype, std::move(entry.shape), bytes.subspan(entry.begin, entry.end - entry.begin)};
      tensors.emplace(std::move(entry.name), std::move(view));
    }
    mappings.push_back(*std::move(mapped));
    return {};
  }
};

checkpoint::checkpoint(std::shared_ptr<const contents> held) : held_(std::move(held)) {}
checkpoint::checkpoint(checkpoint&&) noexcept = default;
checkpoint& checkpoint::operator=(checkpoint&&) noexcept = default;
checkpoint::~checkpoint() = default;

result<checkpoint> checkpoint::open_file(const fs::path& file) {
  auto held = std::make_shared<contents>();
  if (const auto added = held->add(file, nullptr); !added) return added.failure();
  return checkpoint(std::move(held));
}

result<checkpoint> checkpoint::open(const fs::path& directory) {
  const result<std::string> index = read_text_file(directory / index_name, index_bytes_max);
  if (!index && index.failure().code != errc::not_found) return index.failure();
  if (!index) {
    std::error_code status;
    if (fs::exists(directory / single_name, status)) return open_file(directory / single_name);
    return error{errc::not_found, "There is neither " + std::string(single_name) + " nor " + index_name + " in " +
                                      shown(directory.string()) + "."};
  }
  const result<weight_map> map = parse_index(*index);
  if (!map) return map.failure();
  std::set<std::string_view> files;
  for (const auto& [tensor, file] : *map) files.insert(file);
  if (files.size() > shards_max) return error{errc::malformed, std::string(index_name) + " names too many files."};

  auto held = std::make_shared<contents>();
  for (const std::string_view file : files) {
    if (const auto added = held->add(directory / file, &*map); !added) return added.failure();
  }
  for (const auto& [tensor, file] : *map) {
    if (!held->tensors.contains(tensor)) {
      return error{errc::malformed, std::string(index_name) + " puts the tensor " + shown(tensor) + " into " +
                                        shown(file) + ", which does not hold it."};
    }
  }
  return checkpoint(std::move(held));
}

const tensor_view* checkpoint::find(std::string_view name) const {
  const auto found = held_->tensors.find(name);
  return found == held_->tensors.end() ? nullptr : &found->second;
}

std::vector<std::string_view> checkpoint::names() const {
  std::vector<std::string_view> names;
  names.reserve(held_->tensors.size());
  for (const auto& [name, view] : held_->tensors) names.push_back(name);
  return names;
}

size_t checkpoint::size() const { return held_->tensors.size(); }

int64_t checkpoint::data_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, view] : held_->tensors) bytes += static_cast<int64_t>(view.data.size());
  return bytes;
}

std::shared_ptr<const void> checkpoint::keep_alive() const { return held_; }

}  // namespace troupe
