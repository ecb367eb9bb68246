// The house rules that a program can check, as pure functions over one file's path and text.
//
// The tests beside this run them over the tree and over samples that break them. A path is relative to
// the repository's root, with forward slashes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace troupe::tidy {

// One place that breaks a rule.
struct offence {
  std::string path;
  int line = 0;
  std::string reason;
};

using offences = std::vector<offence>;

// The text with comments and the insides of string and character literals blanked; lines keep their numbers.
std::string code_only(std::string_view text);

bool is_header(std::string_view path);
bool is_source(std::string_view path);  // headers included

// kernels <- runtime <- actors <- apps, examples; no sockets, threads or actors in kernels.
offences include_direction(std::string_view path, std::string_view text);

// A header starts with a comment that says what it is, has `#pragma once` and no `using namespace`; only
// tests' own fixtures may open one.
offences header_form(std::string_view path, std::string_view text);

// No unseeded randomness and no distribution whose bits depend on the library.
offences randomness(std::string_view path, std::string_view text);

// Actors and policies take time from the actor clock alone, so that they run in virtual time.
offences wall_clocks(std::string_view path, std::string_view text);

// Leftovers: notes to oneself, paths of one machine, hosts of package registries.
offences leftovers(std::string_view path, std::string_view text);

// Files are named for a noun of the field.
offences vague_names(std::string_view path);

int count_lines(std::string_view text);

}  // namespace troupe::tidy
