// Reading `key: value` YAML whose every key is known.
//
// One entry for each key; anything else is refused with the nearest valid name. Used by every YAML reader.
#pragma once

#include <yaml-cpp/yaml.h>

#include <functional>
#include <map>
#include <string>

#include "runtime/error.hpp"

namespace troupe {

class key_table {
 public:
  // A setter may throw an `error` to refuse a value with a sentence of its own.
  using setter = std::function<void(const YAML::Node&)>;

  template <class Value>
  void add(const std::string& key, Value& target) {
    setters_[key] = [&target](const YAML::Node& node) { target = node.as<Value>(); };
  }
  void add(const std::string& key, setter set) { setters_[key] = std::move(set); }

  // Fails: malformed (not a map, or a value of another type), invalid_argument (unknown key), and what
  // setters throw.
  result<void> read(const YAML::Node& document) const;

 private:
  std::map<std::string, setter> setters_;
};

}  // namespace troupe
