#include "tests/tidy/rules.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <functional>
#include <span>

namespace troupe::tidy {
namespace {

bool is_identifier(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Calls `visit(line, number)` for each line, numbered from 1.
void each_line(std::string_view text, const std::function<void(std::string_view, int)>& visit) {
  for (int number = 1; !text.empty(); ++number) {
    const auto end = std::min(text.find('\n'), text.size());
    visit(text.substr(0, end), number);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

// Whether `word` stands in `line` with no identifier character touching it.
bool has_word(std::string_view line, std::string_view word) {
  for (auto at = line.find(word); at != std::string_view::npos; at = line.find(word, at + 1)) {
    const auto end = at + word.size();
    if ((at == 0 || !is_identifier(line[at - 1])) && (end == line.size() || !is_identifier(line[end]))) return true;
  }
  return false;
}

// Whether `line` calls the free function `name`; a member of that name is another matter.
bool calls_free_function(std::string_view line, std::string_view name) {
  for (auto at = line.find(name); at != std::string_view::npos; at = line.find(name, at + 1)) {
    const auto end = at + name.size();
    if (end >= line.size() || line[end] != '(') continue;
    if (at == 0) return true;
    const char before = line[at - 1];
    if (!is_identifier(before) && before != '.' && before != '>') return true;
  }
  return false;
}

bool under(std::string_view path, std::string_view directory) { return path.starts_with(directory); }

bool under_any(std::string_view path, std::initializer_list<std::string_view> directories) {
  return std::ranges::any_of(directories, [&](std::string_view d) { return under(path, d); });
}

std::string_view trimmed(std::string_view line) {
  while (!line.empty() && std::isspace(static_cast<unsigned char>(line.front())) != 0) line.remove_prefix(1);
  return line;
}

struct include_line {
  std::string_view target;
  bool quoted = false;
};

// The target of an include directive, or an empty one.
include_line parse_include(std::string_view line) {
  line = trimmed(line);
  if (!line.starts_with('#')) return {};
  line = trimmed(line.substr(1));
  if (!line.starts_with("include")) return {};
  line = trimmed(line.substr(7));
  if (line.empty() || (line.front() != '"' && line.front() != '<')) return {};
  const bool quoted = line.front() == '"';
  const auto end = line.find(quoted ? '"' : '>', 1);
  if (end == std::string_view::npos) return {};
  return {line.substr(1, end - 1), quoted};
}

// What a directory may include of the project's own, and what of libraries it must not.
struct direction {
  std::string_view directory;
  std::vector<std::string_view> own;
  std::vector<std::string_view> foreign_refused;
};

const std::vector<direction>& directions() {
  static const std::vector<direction> all = {
      {"kernels/",
       {"kernels/"},
       {"caf/", "ucp/", "uct/", "ucs/", "spdlog/", "boost/", "yaml-cpp/", "nlohmann/", "CLI/", "prometheus/",
        "sys/socket.h", "netinet/", "pthread.h", "thread", "condition_variable", "future"}},
      {"runtime/", {"kernels/", "runtime/"}, {"CLI/", "boost/beast"}},
      {"actors/",
       {"kernels/", "runtime/", "actors/"},
       {"ucp/", "uct/", "ucs/", "boost/", "CLI/", "cuda", "nccl", "sys/socket.h", "netinet/"}},
      {"apps/", {"kernels/", "runtime/", "actors/", "apps/"}, {}},
  };
  return all;
}

bool names_library(std::string_view target, std::string_view library) {
  // A standard header is the whole name; a library is what the name starts with.
  const bool whole = library.find_first_of("/.") == std::string_view::npos && library != "cuda" && library != "nccl";
  return whole ? target == library : target.starts_with(library);
}

}  // namespace

std::string code_only(std::string_view text) {
  std::string out(text);
  const auto blank = [&](std::size_t from, std::size_t to) {
    for (auto i = from; i < std::min(to, out.size()); ++i) {
      if (out[i] != '\n') out[i] = ' ';
    }
  };
  for (std::size_t i = 0; i < text.size();) {
    const auto rest = text.substr(i);
    if (rest.starts_with("//")) {
      const auto end = std::min(text.find('\n', i), text.size());
      blank(i, end);
      i = end;
    } else if (rest.starts_with("/*")) {
      const auto close = text.find("*/", i + 2);
      const auto end = close == std::string_view::npos ? text.size() : close + 2;
      blank(i, end);
      i = end;
    } else if (rest.starts_with("R\"") && (i == 0 || !is_identifier(text[i - 1]))) {
      const auto open = std::min(text.find('(', i), text.size() - 1);
      const auto mark = ")" + std::string(text.substr(i + 2, open - i - 2)) + "\"";
      const auto close = text.find(mark, open);
      const auto end = close == std::string_view::npos ? text.size() : close;
      blank(open + 1, end);
      i = std::min(end + mark.size(), text.size());
    } else if (text[i] == '"' || (text[i] == '\'' && (i == 0 || !is_identifier(text[i - 1])))) {
      auto end = i + 1;
      while (end < text.size() && text[end] != text[i] && text[end] != '\n') end += text[end] == '\\' ? 2 : 1;
      blank(i + 1, end);
      i = std::min(end + 1, text.size());
    } else {
      ++i;
    }
  }
  return out;
}

bool is_header(std::string_view path) { return path.ends_with(".hpp") || path.ends_with(".cuh"); }

bool is_source(std::string_view path) { return is_header(path) || path.ends_with(".cpp") || path.ends_with(".cu"); }

offences include_direction(std::string_view path, std::string_view text) {
  offences found;
  const auto rule = std::ranges::find_if(directions(), [&](const auto& d) { return under(path, d.directory); });
  if (rule == directions().end() || !is_source(path)) return found;
  each_line(text, [&](std::string_view line, int number) {
    const auto [target, quoted] = parse_include(line);
    if (target.empty()) return;
    const auto starts = [&](std::string_view prefix) { return target.starts_with(prefix); };
    if (quoted && std::ranges::none_of(rule->own, starts)) {
      found.push_back({std::string(path), number, "must not include \"" + std::string(target) + "\""});
    }
    const auto is = [&](std::string_view library) { return names_library(target, library); };
    if (!quoted && std::ranges::any_of(rule->foreign_refused, is)) {
      found.push_back({std::string(path), number, "must not include <" + std::string(target) + ">"});
    }
  });
  return found;
}

offences header_form(std::string_view path, std::string_view text) {
  offences found;
  if (!is_header(path)) return found;
  if (!text.starts_with("//")) found.push_back({std::string(path), 1, "must open with a comment that says what it is"});
  if (text.find("#pragma once") == std::string_view::npos) {
    found.push_back({std::string(path), 1, "has no #pragma once"});
  }
  each_line(code_only(text), [&](std::string_view line, int number) {
    if (has_word(line, "using namespace") && !under(path, "tests/")) {
      found.push_back({std::string(path), number, "a header must not open a namespace for its readers"});
    }
  });
  return found;
}

offences randomness(std::string_view path, std::string_view text) {
  offences found;
  if (!is_source(path)) return found;
  const auto name = path.substr(path.rfind('/') + 1);
  each_line(code_only(text), [&](std::string_view line, int number) {
    const auto add = [&](std::string reason) { found.push_back({std::string(path), number, std::move(reason)}); };
    if (calls_free_function(line, "rand") || calls_free_function(line, "srand")) add("draws from std::rand");
    if (has_word(line, "default_random_engine")) add("an engine that differs between libraries");
    // Applications meet the outside world; everything below them is given its seeds.
    if (has_word(line, "random_device") && !under(path, "apps/") && name.find("seed") == std::string_view::npos) {
      add("random_device belongs in an application or a file named for seeds; randomness is passed in");
    }
    const auto distribution = line.find("_distribution");
    if (under_any(path, {"kernels/", "runtime/", "actors/"}) && distribution != std::string_view::npos) {
      auto begin = distribution;
      while (begin > 0 && is_identifier(line[begin - 1])) --begin;
      if (line.substr(0, begin).ends_with("std::")) add("std distributions differ between libraries");
    }
  });
  return found;
}

offences wall_clocks(std::string_view path, std::string_view text) {
  offences found;
  if (!is_source(path) || !under_any(path, {"actors/", "runtime/placement/"})) return found;
  static constexpr std::array words = {"system_clock", "high_resolution_clock", "gettimeofday", "clock_gettime",
                                       "steady_clock::now"};
  each_line(code_only(text), [&](std::string_view line, int number) {
    const bool named = std::ranges::any_of(words, [&](std::string_view word) { return has_word(line, word); });
    if (named || calls_free_function(line, "time")) {
      found.push_back({std::string(path), number, "reads a wall clock; ask the actor's clock"});
    }
  });
  return found;
}

offences leftovers(std::string_view path, std::string_view text) {
  offences found;
  static constexpr std::array notes = {"TODO", "FIXME", "XXX"};
  static constexpr std::array places = {
      "/"
      "work/",
      "/"
      "root/",
      "/"
      "tmp/bash"};
  static constexpr std::array hosts = {"deb.debian.org", "snapshot.debian.org", "pypi.org", "registry.npmjs.org",
                                       "proxy.golang.org"};
  each_line(text, [&](std::string_view line, int number) {
    const auto add = [&](std::string reason) { found.push_back({std::string(path), number, std::move(reason)}); };
    for (const std::string_view note : notes) {
      if (has_word(line, note)) add("a note to oneself: " + std::string(note));
    }
    for (const std::string_view place : places) {
      const auto at = line.find(place);
      const bool inside =
          at != 0 && at != std::string_view::npos && (is_identifier(line[at - 1]) || line[at - 1] == '.');
      if (at != std::string_view::npos && !inside) add("a path of one machine: " + std::string(place));
    }
    for (const std::string_view host : hosts) {
      if (line.find(host) != std::string_view::npos) add("a package registry's host: " + std::string(host));
    }
  });
  return found;
}

offences vague_names(std::string_view path) {
  static constexpr std::array vague = {"manager", "helper", "helpers", "util", "utils", "common", "misc"};
  const auto name = path.substr(path.rfind('/') + 1);
  const auto stem = name.substr(0, name.find('.'));
  offences found;
  for (std::size_t begin = 0; begin <= stem.size();) {
    const auto end = std::min(stem.find('_', begin), stem.size());
    if (std::ranges::find(vague, stem.substr(begin, end - begin)) != vague.end()) {
      found.push_back({std::string(path), 0, "the name says nothing: " + std::string(name)});
    }
    begin = end + 1;
  }
  return found;
}

int count_lines(std::string_view text) { return static_cast<int>(std::ranges::count(text, '\n')); }

}  // namespace troupe::tidy
