#include "runtime/model/text_splitter.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <utility>

#include "runtime/model/regex_dialect.hpp"

namespace troupe {

namespace {

// Bounds the work on one match; the published expressions stay far below.
constexpr uint32_t match_limit = 10'000'000;
constexpr uint32_t heap_limit_kib = 64 << 10;

template <auto Free>
struct release {
  template <class Handle>
  void operator()(Handle* handle) const {
    Free(handle);
  }
};
using code_handle = std::unique_ptr<pcre2_code, release<pcre2_code_free>>;
using compile_handle = std::unique_ptr<pcre2_compile_context, release<pcre2_compile_context_free>>;
using limits_handle = std::unique_ptr<pcre2_match_context, release<pcre2_match_context_free>>;
using match_handle = std::unique_ptr<pcre2_match_data, release<pcre2_match_data_free>>;

PCRE2_SPTR units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

class text_splitter::regex {
 public:
  static result<regex> make(std::string_view pattern) {
    const result<std::string> translated = to_pcre2(pattern);
    if (!translated) return translated.failure();
    // Ruby's ^ and $ are those of lines, and a line ends with LF.
    const compile_handle context(pcre2_compile_context_create(nullptr));
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
    int code = 0;
    PCRE2_SIZE offset = 0;
    regex made;
    made.code_.reset(pcre2_compile(units(*translated), translated->size(), PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE,
                                   &code, &offset, context.get()));
    if (!made.code_) {
      PCRE2_UCHAR message[160] = {};
      pcre2_get_error_message(code, message, sizeof message);
      return error{errc::malformed,
                   std::string("the regular expression is wrong: ") + reinterpret_cast<const char*>(message)};
    }
    uint32_t match_empty = 0;
    pcre2_pattern_info(made.code_.get(), PCRE2_INFO_MATCHEMPTY, &match_empty);
    if (match_empty != 0) return error{errc::unsupported, "the regular expression can match nothing"};
    // Without a JIT compiler the interpreter does the same, slower.
    pcre2_jit_compile(made.code_.get(), PCRE2_JIT_COMPLETE);
    made.limits_.reset(pcre2_match_context_create(nullptr));
    pcre2_set_match_limit(made.limits_.get(), match_limit);
    pcre2_set_heap_limit(made.limits_.get(), heap_limit_kib);
    return made;
  }

  // Appends the pieces of `text` to `pieces`. The piece is the whole subject, so that look-ahead sees
  // its end.
  void split(std::string_view text, pcre2_match_data* match, std::vector<std::string_view>& pieces) const {
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match);
    size_t done = 0;
    while (done < text.size() && find(text, done, match)) {
      if (range[0] > done) pieces.push_back(text.substr(done, range[0] - done));
      pieces.push_back(text.substr(range[0], range[1] - range[0]));
      done = range[1];
    }
    if (done < text.size()) pieces.push_back(text.substr(done));
  }

 private:
  bool find(std::string_view text, size_t from, pcre2_match_data* match) const {
    constexpr uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
    int found = pcre2_match(code_.get(), units(text), text.size(), from, options, match, limits_.get());
    // Compiled code works on a small stack; the interpreter has the heap.
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
      found = pcre2_match(code_.get(), units(text), text.size(), from, options | PCRE2_NO_JIT, match, limits_.get());
    }
    // At a limit the rest of the piece stays whole: cut in an odd place, but nothing is lost.
    return found >= 0;
  }

  code_handle code_;
  limits_handle limits_;
};

text_splitter::text_splitter(std::vector<regex> stages) : stages_(std::move(stages)) {}
text_splitter::text_splitter(text_splitter&&) noexcept = default;
text_splitter& text_splitter::operator=(text_splitter&&) noexcept = default;
text_splitter::~text_splitter() = default;

result<text_splitter> text_splitter::make(std::span<const std::string> patterns) {
  std::vector<regex> stages;
  for (const std::string& pattern : patterns) {
    result<regex> made = regex::make(pattern);
    if (!made) return made.failure();
    stages.push_back(*std::move(made));
  }
  return text_splitter(std::move(stages));
}

std::vector<std::string_view> text_splitter::split(std::string_view text) const {
  std::vector<std::string_view> pieces;
  if (text.empty()) return pieces;
  pieces.push_back(text);
  const match_handle match(pcre2_match_data_create(1, nullptr));
  if (!match) return pieces;
  std::vector<std::string_view> finer;
  for (const regex& stage : stages_) {
    finer.clear();
    finer.reserve(pieces.size() + text.size() / 4);
    for (const std::string_view piece : pieces) stage.split(piece, match.get(), finer);
    pieces.swap(finer);
  }
  return pieces;
}

}  // namespace troupe
