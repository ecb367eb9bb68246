#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "runtime/placement/load_bytes.hpp"
#include "runtime/placement/pickle.hpp"

namespace troupe {

namespace {

using kind = pickle_value::kind;

// The entries of a zip archive whose contents are stored as they are, as torch.save writes them: by name
// without the archive's own directory.
class stored_archive {
 public:
  static result<stored_archive> open(std::string_view bytes, const std::string& source) {
    const error broken{errc::malformed, source + ": the archive is cut short or damaged"};
    constexpr size_t end_size = 22;
    if (bytes.size() < end_size) return broken;
    const auto end = bytes.rfind("PK\x05\x06", bytes.size() - end_size);
    if (end == std::string_view::npos) return broken;
    const uint64_t count = number<uint16_t>(bytes, end + 10);
    uint64_t at = number<uint32_t>(bytes, end + 16);
    if (at == 0xffffffffU || count == 0xffffU)
      return error{errc::unsupported, source + ": an archive of 4 GiB and more is not read"};
    stored_archive archive;
    for (uint64_t i = 0; i < count; ++i) {
      constexpr size_t header = 46;
      if (at + header > bytes.size() || bytes.substr(at, 4) != "PK\x01\x02") return broken;
      const uint64_t stored = number<uint32_t>(bytes, at + 20);
      const uint64_t size = number<uint32_t>(bytes, at + 24);
      const uint64_t name_length = number<uint16_t>(bytes, at + 28);
      const uint64_t local = number<uint32_t>(bytes, at + 42);
      const bool plain = number<uint16_t>(bytes, at + 10) == 0 && stored == size;
      if (at + header + name_length > bytes.size() || local + 30 > bytes.size()) return broken;
      auto name = std::string(bytes.substr(at + header, name_length));
      name.erase(0, name.find('/') + 1);
      const uint64_t data = local + 30 + number<uint16_t>(bytes, local + 26) + number<uint16_t>(bytes, local + 28);
      if (plain) {
        if (data > bytes.size() || size > bytes.size() - data) return broken;
        archive.entries_[name] = bytes.substr(data, size);
      }
      at += header + name_length + number<uint16_t>(bytes, at + 30) + number<uint16_t>(bytes, at + 32);
    }
    return archive;
  }

  const std::string_view* find(const std::string& name) const {
    const auto found = entries_.find(name);
    return found == entries_.end() ? nullptr : &found->second;
  }

 private:
  template <class Number>
  static uint64_t number(std::string_view bytes, size_t at) {
    Number value{};
    if (at + sizeof value <= bytes.size()) std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
  }

  std::map<std::string, std::string_view> entries_;
};

struct dtype {
  std::string_view storage;
  char kind;
  size_t size;
};
constexpr std::array dtypes = {dtype{"torch IntStorage", 'i', 4},   dtype{"torch LongStorage", 'i', 8},
                               dtype{"torch FloatStorage", 'f', 4}, dtype{"torch DoubleStorage", 'f', 8},
                               dtype{"torch ShortStorage", 'i', 2}, dtype{"torch ByteStorage", 'u', 1}};

// _rebuild_tensor_v2(storage, offset, shape, strides, ...), where storage is ("storage", type, key, device, count).
result<count_array> tensor(const pickle_value& value, const stored_archive& archive, const std::string& source) {
  const auto refuse = [&](const char* why) { return error{errc::malformed, source + ": " + why}; };
  if (!value.is(kind::call) || value.items[0]->text != "torch._utils _rebuild_tensor_v2" ||
      value.items[1]->items.size() < 4)
    return refuse("`logical_count` is not a tensor");
  const auto& arguments = value.items[1]->items;
  if (!arguments[0]->is(kind::persistent) || arguments[0]->items[0]->items.size() < 5)
    return refuse("the tensor has no storage");
  const auto& storage = arguments[0]->items[0]->items;
  const auto type =
      std::find_if(dtypes.begin(), dtypes.end(), [&](const dtype& known) { return known.storage == storage[1]->text; });
  if (type == dtypes.end())
    return error{errc::unsupported, source + ": the tensor must be of integers, float32 or float64"};
  const auto* data = archive.find("data/" + storage[2]->text);
  if (data == nullptr) return refuse("the tensor's data is not in the file");
  count_array array;
  uint64_t entries = 1;
  const auto& shape = arguments[2]->items;
  const auto& strides = arguments[3]->items;
  if (shape.size() != strides.size()) return refuse("the tensor's shape and strides differ");
  for (const auto* size : shape) {
    if (!size->is(kind::integer) || size->integer <= 0 ||
        static_cast<uint64_t>(size->integer) > load_entries_max / entries)
      return refuse("the tensor's shape is no load's");
    array.shape.push_back(static_cast<uint64_t>(size->integer));
    entries *= array.shape.back();
  }
  uint64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0; expected *= array.shape[i])
    if (strides[i]->integer != static_cast<int64_t>(expected) && array.shape[i] > 1)
      return error{errc::unsupported, source + ": the tensor must be contiguous; save tensor.contiguous()"};
  const auto offset = static_cast<uint64_t>(arguments[1]->integer);
  const uint64_t held = data->size() / type->size;
  if (arguments[1]->integer < 0 || offset > held || entries > held - offset)
    return refuse("the tensor's data is shorter than its shape says");
  auto counts =
      counts_from_raw(data->substr(offset * type->size, entries * type->size), type->kind, type->size, source);
  if (!counts) return counts.failure();
  array.counts = std::move(*counts);
  return array;
}

}  // namespace

result<count_array> counts_from_torch(std::string_view bytes, const std::string& source) {
  const auto archive = stored_archive::open(bytes, source);
  if (!archive) return archive.failure();
  const auto* pickle = archive->find("data.pkl");
  if (pickle == nullptr) return error{errc::malformed, source + ": this archive is not one of torch.save"};
  const auto* order = archive->find("byteorder");
  if (order != nullptr && *order != "little")
    return error{errc::unsupported, source + ": it was written on a big-endian machine"};
  const auto document = pickle_document::parse(*pickle, source);
  if (!document) return document.failure();
  const auto& root = document->root();
  if (!root.is(kind::dictionary)) return tensor(root, *archive, source);
  const auto* counts = root.find("logical_count");
  if (counts == nullptr)
    return error{errc::malformed, source + ": it has no `logical_count`; record with SGLang's mode `stat`"};
  return tensor(*counts, *archive, source);
}

}  // namespace troupe
