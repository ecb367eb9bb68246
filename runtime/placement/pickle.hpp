// As much of Python's pickle as a file of torch.save needs to be read: data, and nothing that runs.
//
// A global is a name, a call is a list of its function and arguments; what they mean is the reader's business. All
// values belong to the document. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/error.hpp"

namespace troupe {

struct pickle_value {
  enum class kind { none, boolean, integer, real, text, list, dictionary, global, call, persistent };
  kind what = kind::none;
  int64_t integer = 0;  // boolean, integer
  std::string text;     // text; global: "module name"
  // list: its items; dictionary: key, value, key, value, ...; call: function and arguments; persistent: what
  // identifies it.
  std::vector<const pickle_value*> items;

  // The value of a text key of a dictionary; null when there is none.
  const pickle_value* find(std::string_view key) const;
  bool is(kind other) const { return what == other; }
};

class pickle_document {
 public:
  // Fails: malformed; unsupported for what data of this kind does not need.
  static result<pickle_document> parse(std::string_view bytes, const std::string& source);

  const pickle_value& root() const { return *root_; }

 private:
  friend class pickle_machine;
  std::vector<std::unique_ptr<pickle_value>> values_;
  const pickle_value* root_ = nullptr;
};

}  // namespace troupe
