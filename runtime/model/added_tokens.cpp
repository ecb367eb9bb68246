#include "runtime/model/added_tokens.hpp"

namespace troupe {

namespace {
uint64_t edge_of(uint32_t node, char byte) { return uint64_t{node} << 8 | static_cast<uint8_t>(byte); }
}  // namespace

uint32_t added_tokens::follow(uint32_t node, char byte) const {
  const auto found = edges_.find(edge_of(node, byte));
  return found == edges_.end() ? root : found->second;
}

bool added_tokens::add(std::string_view content, int32_t id) {
  begins_[static_cast<uint8_t>(content[0])] = true;
  uint32_t node = root;
  for (const char byte : content) {
    const auto [edge, is_new] = edges_.try_emplace(edge_of(node, byte), static_cast<uint32_t>(ids_.size()));
    if (is_new) ids_.push_back(-1);
    node = edge->second;
  }
  if (ids_[node] >= 0) return false;
  ids_[node] = id;
  return true;
}

std::optional<added_tokens::match> added_tokens::find(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!begins_[static_cast<uint8_t>(text[begin])]) continue;
    std::optional<match> longest;
    uint32_t node = root;
    for (size_t at = begin; at < text.size(); ++at) {
      node = follow(node, text[at]);
      if (node == root) break;
      if (ids_[node] >= 0) longest = match{begin, at + 1, ids_[node]};
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

std::optional<int32_t> added_tokens::id_of(std::string_view content) const {
  uint32_t node = root;
  for (const char byte : content) {
    node = follow(node, byte);
    if (node == root) return std::nullopt;
  }
  if (ids_[node] < 0) return std::nullopt;
  return ids_[node];
}

}  // namespace troupe
