// Which names a request body may carry: served, tolerated, or a likely misspelling.
//
// Pure functions; any thread.
#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <span>
#include <string_view>

#include "apps/http/api_error.hpp"

namespace troupe::http {

// Looks at the names that are not in `served`:
//  - one that other servers know and that would change the tokens (top_k, tools, ...) may carry only
//    the value that changes nothing, since ignoring it would answer another question than was asked;
//  - one that differs from a served name by case, separators or a typo is refused with that name;
//  - every other name is ignored.
// `prefix` names the object in messages ("stream_options."; empty for the body).
std::optional<api_error> check_unserved_fields(const nlohmann::json& object, std::span<const std::string_view> served,
                                               std::string_view prefix = "");

}  // namespace troupe::http
