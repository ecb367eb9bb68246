#include "runtime/key_table.hpp"

#include <vector>

#include "runtime/nearest_name.hpp"

namespace troupe {

result<void> key_table::read(const YAML::Node& document) const {
  if (!document.IsMap()) return error{errc::malformed, "this must be a list of `key: value` pairs"};
  for (const auto& entry : document) {
    const auto key = entry.first.as<std::string>();
    const auto known = setters_.find(key);
    if (known == setters_.end()) {
      std::vector<std::string> names;
      for (const auto& [name, set] : setters_) names.push_back(name);
      return error{errc::invalid_argument,
                   "there is no setting `" + key + "`; did you mean `" + nearest_name(key, names) + "`?"};
    }
    try {
      known->second(entry.second);
    } catch (const YAML::Exception&) {
      return error{errc::malformed, "the value of `" + key + "` on line " +
                                        std::to_string(entry.second.Mark().line + 1) + " cannot be read"};
    } catch (const error& refused) {
      return refused;
    }
  }
  return {};
}

}  // namespace troupe
