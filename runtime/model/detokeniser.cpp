#include "runtime/model/detokeniser.hpp"

#include <utility>

#include "runtime/model/utf8.hpp"

namespace troupe {

std::string detokeniser::push(int32_t id) {
  if (skip_special_ && source_->is_special(id)) return {};
  pending_ += source_->token_bytes(id);
  std::string out;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const utf8_step step = utf8_next(rest);
    if (step.kind == utf8_kind::incomplete) break;
    out += step.kind == utf8_kind::character ? rest.substr(0, step.bytes) : replacement_character;
    rest.remove_prefix(step.bytes);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return out;
}

std::string detokeniser::flush() { return repair_utf8(std::exchange(pending_, {})); }

}  // namespace troupe
