#include "runtime/model/regex_dialect.hpp"

#include <cctype>
#include <optional>

#include "runtime/model/json_text.hpp"

namespace troupe {

namespace {

// Unicode's White_Space, the meaning of \s in Oniguruma. PCRE2's own \s also holds U+180E.
constexpr std::string_view white_space =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// After "(?": groups and look-arounds that mean the same in both.
constexpr std::string_view known_groups[] = {":", "=", "!", "<=", "<!", ">", "i:"};

class translator {
 public:
  explicit translator(std::string_view pattern) : rest_(pattern) {}

  result<std::string> run() {
    while (!rest_.empty() && !failure_) {
      in_class_ ? class_step() : plain_step();
    }
    if (failure_) return *failure_;
    return std::move(out_);
  }

 private:
  void plain_step() {
    if (rest_[0] == '\\') return escape();
    if (rest_[0] == '[') {
      in_class_ = true;
      copy(rest_.substr(1).starts_with('^') ? 2 : 1);
      if (rest_.starts_with(']')) refuse("a class that begins with ']'");
      return;
    }
    if (rest_.starts_with("(*")) return refuse("(*");
    if (rest_.starts_with("(?")) return group();
    // Ruby reads {,n} as {0,n} and x{n}+ as a repeated repeat.
    if (rest_.starts_with("{,")) return refuse("{,n}");
    if (rest_.starts_with("}+")) return refuse("}+");
    copy(1);
  }

  void class_step() {
    if (rest_[0] == '\\') return escape();
    if (rest_[0] == '[') return refuse("a class inside a class");
    if (rest_.starts_with("&&")) return refuse("&& inside a class");
    if (rest_[0] == ']') in_class_ = false;
    copy(1);
  }

  void group() {
    for (const std::string_view known : known_groups) {
      if (rest_.substr(2).starts_with(known)) return copy(2 + known.size());
    }
    refuse(rest_.substr(0, 3));
  }

  void escape() {
    if (rest_.size() < 2) return refuse("a trailing backslash");
    const char what = rest_[1];
    if (what == 's' || what == 'S') return space_escape(what == 'S');
    if (what == 'p' || what == 'P' || what == 'x') {
      // Copies the braces too, so that they are not taken for a repeat.
      const size_t close = rest_.substr(2).starts_with('{') ? rest_.find('}') : std::string_view::npos;
      return copy(close == std::string_view::npos ? 2 : close + 1);
    }
    const bool same = std::string_view("rntfdD").find(what) != std::string_view::npos;
    if (!same && std::ispunct(static_cast<unsigned char>(what)) == 0) return refuse(rest_.substr(0, 2));
    copy(2);
  }

  void space_escape(bool negated) {
    if (negated && in_class_) return refuse("\\S inside a class");
    if (!in_class_) out_ += negated ? "[^" : "[";
    out_ += white_space;
    if (!in_class_) out_ += ']';
    rest_.remove_prefix(2);
  }

  void copy(size_t bytes) {
    out_ += rest_.substr(0, bytes);
    rest_.remove_prefix(std::min(bytes, rest_.size()));
  }

  void refuse(std::string_view construct) {
    failure_ = error{errc::unsupported, "the regular expression uses " + shown(construct) +
                                            ", which is not supported because engines disagree about it"};
  }

  std::string_view rest_;
  std::string out_;
  bool in_class_ = false;
  std::optional<error> failure_;
};

}  // namespace

result<std::string> to_pcre2(std::string_view pattern) {
  if (pattern.size() > pattern_bytes_max) return error{errc::unsupported, "the regular expression is too long"};
  return translator(pattern).run();
}

}  // namespace troupe
