#include "runtime/device/stage.hpp"

namespace troupe {

std::string_view name(stage_kind kind) {
  switch (kind) {
    case stage_kind::attn: return "ATTN";
    case stage_kind::attn_0: return "ATTN-0";
    case stage_kind::attn_1: return "ATTN-1";
    case stage_kind::shared: return "SHARED";
    case stage_kind::mlp: return "MLP";
    case stage_kind::head: return "HEAD";
  }
  return "?";
}

}  // namespace troupe
