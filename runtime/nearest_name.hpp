// The valid name that a mistyped one was probably meant to be, for messages. Pure, any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace troupe {

// Empty when there are no names.
std::string nearest_name(std::string_view wrong, const std::vector<std::string>& names);

}  // namespace troupe
