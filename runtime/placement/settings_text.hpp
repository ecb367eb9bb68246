// `NAME` or `NAME:key=value,...`, as policies and generators are named on a command line.
//
// Pure values, any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/error.hpp"

namespace troupe {

class settings_text {
 public:
  // Fails: invalid_argument when a part is not `key=value` or a key comes twice.
  static result<settings_text> parse(const std::string& text);

  const std::string& name() const { return name_; }

  // Each puts the value of `key` into `target` if there is one; what was not asked for is an error in the end.
  void take(const std::string& key, double& target);
  void take(const std::string& key, uint32_t& target);
  void take(const std::string& key, uint64_t& target);
  void take(const std::string& key, std::string& target);

  // Fails: invalid_argument for a value that could not be read, or for a key that nobody took; the sentence
  // lists those that `name` takes.
  result<void> finish() const;

 private:
  const std::string* find(const std::string& key);
  void refuse(const std::string& key, const std::string& value, const char* wanted);

  std::string name_;
  std::map<std::string, std::string> values_;
  std::vector<std::string> known_;
  std::string refused_;
};

}  // namespace troupe
